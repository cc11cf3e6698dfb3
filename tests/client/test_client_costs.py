"""`covey profile`: which shapes are measured, what rounds say of them, the table and its picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from covey.planner.cost_table import load_costs
from covey_client.cli import main
from covey_client.commands.profile import with_constants
from covey_client.costs import bench as benches
from covey_client.costs import curves
from covey_client.costs.bench import Bench, beginning
from covey_client.costs.samples import Samples
from covey_client.costs.shapes import Batch, Prefill, Switch, blocker, growth, shapes
from covey_client.errors import Overloaded
from covey_client.reports import Facts, Reports, Round

FACTS = Facts(
    *("m", "cpu", "bfloat16", "fast", "demo"),
    vocab_size=4096,
    max_positions=2048,
    block_size=16,
    total_blocks=2048,
    drafters=("a", "b"),
    max_depth=6,
    max_width=3,
    max_running=64,
    token_budget=256,
)


def seen(number: int, rows: int, **changes: float) -> Round:
    plain = Round(number, rows, rows, 0, 0, 0, 0.001, 0.0, 0.01, 0.009, 0.002, 0.0, 0, rows)
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(
    "facts",
    [
        FACTS,
        replace(FACTS, token_budget=16, max_running=2),
        replace(FACTS, max_positions=256, total_blocks=64),
        replace(FACTS, drafters=()),
        replace(FACTS, max_depth=1),
    ],
)
def test_shapes_fit_the_server(facts: Facts, quick: bool) -> None:
    found = shapes(facts, facts.drafters[:1], quick=quick)
    assert len(set(found)) == len(found)
    assert Batch(1, 0, "") in found
    for shape in found:
        if isinstance(shape, Batch):
            assert shape.rows * (shape.depth + 1) <= facts.token_budget
            assert shape.rows <= facts.max_running
            assert shape.depth <= facts.max_depth
        elif isinstance(shape, Prefill):
            assert shape.tokens <= facts.token_budget
        else:
            room = growth(facts, shape.lag, shape.rows)
            assert shape.lag + room < facts.max_positions
            assert shape.rows * (shape.lag + room) + blocker(facts) < facts.total_blocks * facts.block_size
    assert any(isinstance(shape, Switch) for shape in shapes(FACTS, ("a",), quick=quick))


def test_a_beginning_sums_the_catch_up_until_every_row_drafts() -> None:
    rounds = [
        seen(1, 0, prefill_tokens=256),
        seen(2, 2, prefill_tokens=254),
        seen(3, 3, prefill_tokens=253),
        seen(4, 3, trees=2, draft_seconds=0.5, catch_up_seconds=0.4),
        seen(5, 3, trees=3, draft_seconds=0.3, catch_up_seconds=0.2),
        seen(6, 3, trees=3, draft_seconds=0.1, catch_up_seconds=0.1),
    ]
    found = beginning(rounds, 64, 3)
    assert found is not None
    assert (found.lag, found.rows) == (64 + 1 + 2, 3)
    assert found.seconds == pytest.approx(0.6)


def test_rows_that_began_apart_or_never_say_nothing() -> None:
    apart = [seen(1, 1, trees=1, catch_up_seconds=0.1), seen(2, 2, trees=2, catch_up_seconds=0.1)]
    assert beginning(apart, 64, 2) is None
    assert beginning([seen(1, 2)], 64, 2) is None
    assert beginning([seen(1, 2, trees=1, catch_up_seconds=0.1)], 64, 2) is None


class Told(Reports):
    """A server that was asked for its rounds so many times: the last round left others running until then."""

    def __init__(self, busy: int) -> None:
        self.busy = busy

    def last_round(self) -> int:
        return 7

    def rounds(self, after: int) -> list[Round]:
        assert after == 6
        self.busy -= 1
        return [seen(7, 1, running=int(self.busy >= 0))]


def test_nothing_is_measured_while_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benches, "ENDED_SECONDS", 0.2)
    Bench("127.0.0.1:9", Told(2), FACTS).settle()
    with pytest.raises(Overloaded, match="serving others"):
        Bench("127.0.0.1:9", Told(1000), FACTS).settle()


def measured() -> Samples:
    samples = Samples()
    for rows in (1, 8):
        samples.decoded(rows, 0, "", [seen(1, rows), seen(2, rows, verify_seconds=0.012), seen(3, rows)])
        for name in ("a", "b"):
            drafting = [seen(1, rows, trees=rows, drafted=2 * rows, draft_seconds=0.005, catch_up_seconds=0.001)]
            samples.decoded(rows, 2, name, drafting)
    samples.read(64, [seen(1, 1, verify_seconds=0.02)])
    samples.read(128, [])
    for found in (beginning([seen(1, 1, trees=1, catch_up_seconds=seconds)], 16, 1) for seconds in (0.0001, 0.003)):
        assert found is not None
        samples.began("a", found.lag, found.rows, found.seconds)
    return samples


def test_a_table_is_made_of_medians(tmp_path: Path) -> None:
    table = measured().table("mine", "made up")
    assert table.verify == ((1, 1, 0.01), (1, 3, 0.01), (8, 8, 0.01), (8, 24, 0.01))
    assert table.overhead == ((1, 0.003), (8, 0.003))
    assert table.plain == ((1, 0.013), (8, 0.013))
    assert table.draft == {"a": ((1, 2, 0.004), (8, 2, 0.004)), "b": ((1, 2, 0.004), (8, 2, 0.004))}
    assert table.switch == {"a": ((17, 1, 0.00155),)}
    assert table.prefill == ((64, 0.02),)
    table.save(tmp_path / "mine.json")
    assert load_costs(tmp_path / "mine.json") == table


def test_what_was_measured_is_not_lost_where_no_guesses_are_to_search_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COVEY_PROFILES", str(tmp_path))
    table = measured().table("mine", "made up")
    assert with_constants(table, FACTS) == table
    assert "no constants of policy adaserve: recorded guesses" in capsys.readouterr().out
    assert with_constants(Samples().table("mine", "made up"), FACTS).adaserve == {}, "nobody drafts"


@pytest.mark.parametrize("empty", [True, False])
def test_a_picture_is_drawn_of_whatever_was_measured(tmp_path: Path, empty: bool) -> None:
    samples = Samples() if empty else measured()
    curves.draw(samples.table("mine", "made up"), tmp_path / "mine.png")
    assert (tmp_path / "mine.png").read_bytes()[:4] == b"\x89PNG"


def test_a_table_that_is_there_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.json").write_text("{}")
    assert main(["profile", str(tmp_path / "mine.json")]) == 2
    assert "--force" in capsys.readouterr().err


def test_no_server_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", str(tmp_path / "mine.json"), "--http-url", "127.0.0.1:9"]) == 5
    assert capsys.readouterr().err.count("\n") == 1

"""Bench `speedup`, from made-up answers: who is asked what, how long, and what the results say."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console

from covey.contracts import profile
from covey.contracts.types import JsonDict
from loadtest.bench import speedup, workload
from loadtest.bench.__main__ import main
from loadtest.bench.policies import OFF, fixed
from loadtest.bench.session import Session, Wanted
from loadtest.bench.speedup import AUTO, GREEDY, HOT, Point, SpeedupAnswers, Turn
from loadtest.bench.work import Answer, Ask, Run
from loadtest.questions import Prompts

NAMES = (AUTO, OFF, *map(fixed, (1, 2, 3, 4)))
KNOWN: Prompts = {domain: [f"{domain} {number}" for number in range(9)] for domain in ("code", "chat")}
TEXT, LOOP = tuple(range(64)), (7,) * 64


class Simulated:
    """A candidate that takes `seconds(temperature)` for a run, by a clock that all share."""

    def __init__(self, name: str, clock: list[float], seconds: Callable[[float], float]) -> None:
        self.name = name
        self.runs: list[tuple[Sequence[Ask], str]] = []
        self._clock, self._seconds = clock, seconds

    def close(self) -> None:
        """Nothing is open."""

    def run(self, asks: Sequence[Ask], concurrency: int, tenant: str = "") -> Run:
        assert len(asks) % concurrency == 0
        self.runs.append((asks, tenant))
        seconds = self._seconds(asks[0].temperature) * asks[0].max_tokens / speedup.TOKENS
        self._clock[0] += seconds
        return Run(tuple(Answer(TEXT[: ask.max_tokens], seconds) for ask in asks), seconds)


def greedy_likes_depth(name: str) -> Callable[[float], float]:
    """Greedy: the deeper the faster; at temperature 1, the shallower. A run without drafts takes 2 s."""
    depth = int(name[-1]) if name.startswith("fixed") else 0
    return lambda temperature: 2.0 - (depth * 0.3 if temperature == GREEDY else (5 - depth) * 0.3 * bool(depth))


def turns_taken(seconds: float, repetitions: int = 0) -> tuple[dict[str, Simulated], list[float]]:
    """Return the candidates after their turns, and the clock."""
    clock = [0.0]
    entrants = {name: Simulated(name, clock, greedy_likes_depth(name)) for name in NAMES}
    session = Session("speedup", Wanted(Path("unused.json"), repetitions=repetitions), Console(quiet=True))
    points = SpeedupAnswers().at(4)
    speedup.Load(session, entrants, KNOWN, 4, clock=lambda: clock[0]).measure(points, seconds)
    return entrants, clock


def made_up(speeds: Mapping[str, Sequence[float]], temperature: float = HOT, *, looping: bool = False) -> Point:
    """Return a point whose candidates have these tokens per second, by turns. A looping request comes at no time."""
    asks = [Ask(domain, 64, temperature, domain=domain) for domain in ("code", "chat", "code")[: 2 + looping]]
    drafts = {"code": (40, 30, (2, 2, 8)), "chat": (40, 10, (6, 6, 0))}

    def run(speed: float) -> Run:
        answers = [Answer(TEXT, 128 / speed, *drafts[ask.domain], first=0.5) for ask in asks[:2]]
        answers += [Answer(LOOP, 16 / speed)] * looping
        return Run(tuple(answers), sum(answer.seconds for answer in answers) / 2)

    count = len(next(iter(speeds.values())))
    return Point([Turn(asks, {name: run(each[turn]) for name, each in speeds.items()}) for turn in range(count)])


def test_in_a_turn_all_get_the_same_and_nothing_comes_twice_within_a_tenant() -> None:
    entrants, _ = turns_taken(1e6, repetitions=2)
    first, again = (entrants[name].runs for name in (AUTO, OFF))
    assert [asks for asks, _ in first] == [asks for asks, _ in again]
    assert [{ask.temperature for ask in asks} for asks, _ in first] == [{GREEDY}, {HOT}] * 3
    tenants = [tenant for one in entrants.values() for _, tenant in one.runs]
    assert len(set(tenants)) == len(tenants)
    assert all(len({ask.text for ask in asks}) == len(asks) == 8 for asks, _ in first)
    screening, turn = ({ask.text for ask in asks} for asks, _ in first[::2][:2])
    assert not screening & turn, "other turns have other prompts"
    assert len({ask.seed for asks, _ in first for ask in asks}) == 3 * 8


def test_prompts_of_a_turn_are_of_all_domains_and_come_again_after_all_others() -> None:
    dealt = [workload.dealt(KNOWN, 6, turn, seed=3) for turn in range(3)]
    assert all(sum(domain == "code" for domain, _ in each) == 3 for each in dealt)
    assert len({card for each in dealt for card in each}) == 18
    assert dealt[0] != workload.dealt(KNOWN, 6, 0, seed=4)


def test_screening_leaves_the_two_fastest_lengths_of_each_temperature() -> None:
    entrants, _ = turns_taken(1e6, repetitions=3)
    asked = {
        name: [sum(asks[0].temperature == t for asks, _ in one.runs[2:]) for t in (GREEDY, HOT)]
        for name, one in entrants.items()
    }
    greedy, hot = {fixed(d): [3, 0] for d in (3, 4)}, {fixed(d): [0, 3] for d in (1, 2)}
    assert asked == {AUTO: [3, 3], OFF: [3, 3], **hot, **greedy}


def test_no_turn_starts_that_would_end_later() -> None:
    _, (screened,) = turns_taken(0.0)
    _, (whole,) = turns_taken(1e6, repetitions=1)
    turn = whole - screened
    for seconds, turns in ((whole - 0.1, 0), (whole + 0.1, 1), (whole + turn - 0.1, 1), (whole + 3 * turn + 0.1, 4)):
        entrants, (ended,) = turns_taken(seconds)
        assert len(entrants[AUTO].runs) == 2 * (1 + turns)
        assert ended <= seconds or not turns


def test_minutes_are_the_loads_alike(tmp_path: Path) -> None:
    session = Session("speedup", Wanted(tmp_path / "out.json", minutes=8.0), Console(quiet=True))
    assert session.share(4) == pytest.approx(120, abs=5)
    assert session.share(1) == pytest.approx(480, abs=5)
    late = Session("speedup", Wanted(tmp_path / "out.json", minutes=0.0), Console(quiet=True))
    assert late.share(2) == 0.0


def test_ratios_are_of_one_turn_so_that_drift_cancels() -> None:
    speeds = {AUTO: [100.0, 50.0, 10.0, 25.0], OFF: [80.0, 40.0, 8.0, 20.0], fixed(2): [50.0, 25.0, 5.0, 12.5]}
    found = made_up(speeds).summary()
    assert found["adaptive_over_off"] == pytest.approx([1.25] * 3)
    assert found["adaptive_over_best_static"] == pytest.approx([1.25] * 3)
    assert found["best_static"] == [OFF, OFF]
    assert found["best_static_over_off"] == pytest.approx([0.625] * 3)


def test_the_best_static_choice_is_compared_where_it_was_not_picked() -> None:
    """fixed:1 is lucky in every other turn: it must not keep what luck gave it."""
    speeds = {AUTO: [4.0] * 4, OFF: [1.0] * 4, fixed(1): [1.0, 8.0, 1.0, 8.0], fixed(2): [2.0] * 4}
    found = made_up(speeds).summary()
    assert found["best_static"] == [fixed(1), fixed(2)]
    median, low, high = found["adaptive_over_best_static"]
    assert (median, low, high) == pytest.approx((3.0, 2.0, 4.0))


def test_an_interval_is_narrower_than_all_turns() -> None:
    fast = [1.0 + 0.01 * turn for turn in range(20)]
    median, low, high = made_up({AUTO: fast, OFF: [1.0] * 20}).summary()["adaptive_over_off"]
    assert 1.0 < low < median < high < 1.19
    assert median == pytest.approx(1.095)


@pytest.mark.parametrize(("temperature", "looping"), [(GREEDY, 2), (HOT, 0)])
def test_loops_are_left_out_of_greedy_text_and_counted(temperature: float, looping: int) -> None:
    found = made_up({AUTO: [64.0] * 2, OFF: [32.0] * 2}, temperature, looping=True).summary()
    assert (found["looping"], found["requests"], found["turns"]) == (looping, 6, 2)
    rate = found["tokens_per_second"][AUTO]["median"]
    assert rate == pytest.approx(64.0 if looping else 2 * 192 / (4 + 0.25))


def test_acceptance_is_by_domain_and_by_position() -> None:
    found = made_up({AUTO: [64.0] * 2, OFF: [32.0] * 2}).summary()
    assert found["acceptance"].keys() == {AUTO}
    assert found["acceptance"][AUTO]["by_domain"] == {"code": 0.75, "chat": 0.25}
    assert found["acceptance"][AUTO]["by_position"] == pytest.approx([16 / 24, 8 / 24])
    assert found["tokens_per_second_per_user"] == pytest.approx({AUTO: 32.0, OFF: 16.0})
    assert found["seconds_to_first_token"] == {AUTO: 0.5, OFF: 0.5}
    assert found["callers_at_work"] == pytest.approx({AUTO: 2.0, OFF: 2.0})


def test_texts_that_differ_from_plain_decoding_are_counted() -> None:
    point = made_up({AUTO: [64.0], OFF: [32.0]})
    odd = Run((Answer(TEXT[1:], 2.0), *point.turns[0].runs[AUTO].answers[1:]), 2.0)
    point.turns.append(Turn(point.turns[0].asks, {**point.turns[0].runs, AUTO: odd}))
    assert point.summary()["texts_that_differ_from_off"] == {AUTO: 1, OFF: 0}


def results() -> JsonDict:
    measured = SpeedupAnswers()
    for callers in (1, 16):
        for temperature in (GREEDY, HOT):
            measured.at(callers)[temperature] = made_up({AUTO: [5.0] * 3, OFF: [4.0] * 3, fixed(3): [8.0] * 3})
    measured.at(4)
    return measured.summary()


def test_the_json_has_ratios_by_callers_and_temperature() -> None:
    found = results()
    over, nothing = pytest.approx([1.25] * 3), {"0": None, "1": None}
    assert found["adaptive_over_off"] == {"1": {"0": over, "1": over}, "16": {"0": over, "1": over}, "4": nothing}
    assert found["adaptive_over_best_static"]["16"]["1"] == pytest.approx([0.625] * 3)
    assert found["points"]["1"]["0"]["best_static"] == ["fixed:3", "fixed:3"]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_one_turn_gives_no_ratio() -> None:
    assert made_up({AUTO: [5.0], OFF: [4.0]}).summary()["adaptive_over_off"] is None


@pytest.mark.parametrize("some", [True, False])
def test_results_are_written_drawn_and_shown(tmp_path: Path, some: bool) -> None:
    console = Console(width=200, file=io.StringIO())
    session = Session("speedup", Wanted(tmp_path / "deep" / "out.json", seed=5), Console(quiet=True))
    session.summarise, session.draw = results if some else SpeedupAnswers().summary, speedup.picture
    session.interrupted = True
    result = session.write()
    assert json.loads((tmp_path / "deep" / "out.json").read_text()) == result
    assert result["interrupted"] is True
    assert (result["seed"], result["profile"]) == (5, profile.DEFAULT_PROFILE)
    drawn = (tmp_path / "deep" / "out.svg").read_text()
    assert drawn.startswith("<svg")
    assert result["hardware"]["processor"] in drawn
    assert f"commit {result['versions']['commit']}" in drawn
    speedup.show(result, console)
    assert isinstance(console.file, io.StringIO)
    assert ("1.25 (1.25 to 1.25)" in console.file.getvalue()) == some


def test_a_whole_run_at_the_loads_that_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one(_server: object, name: str, *, stream: bool, settings: Mapping[str, object]) -> Simulated:
        assert stream
        assert settings == {"speculation": name}
        return Simulated(name, [0.0], greedy_likes_depth(name))

    monkeypatch.setattr(speedup, "OverTriton", one)
    monkeypatch.setattr(Session, "server", lambda *_: ExitStack())
    out = tmp_path / "out.json"
    assert main(["speedup", "--quick", "--profile", "demo-cpu", "--json", str(out), "--callers", "2,16"]) == 0
    found = json.loads(out.read_text())
    assert list(found["adaptive_over_off"]) == list(found["points"]) == ["2", "16"]
    assert found["adaptive_over_best_static"]["16"]["0"][0] == pytest.approx(0.4), "fixed:4 takes 0.8 s, the policy 2 s"
    assert found["weights"] in ("bfloat16", "float32")
    assert (found["target"], found["quick"]) == ("demo-cpu", True)


def test_a_caller_without_a_prompt_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["speedup", "--profile", "demo-cpu", "--json", str(tmp_path / "out.json"), "--callers", "1,1000"]
    assert main(words) == 1
    assert "--callers: allowed: 1 to 96" in capsys.readouterr().err

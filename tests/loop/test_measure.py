"""Cost curves measured through the ports before anybody is served: right within noise, in bounded time, and kept."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from covey.bandits.policy import Situation
from covey.contracts.errors import PortError
from covey.contracts.profile import Profile, SchedulerSettings, SpeculationSettings
from covey.contracts.types import DrafterInfo, DraftReply, DraftWork, TargetReply, TargetWork
from covey.emulated.devices import EmulatedDrafter, EmulatedTarget
from covey.emulated.hash_model import HashModel
from covey.loop.measure import Curves
from covey.loop.measure_rounds import FURTHER, LONG_ROUND, SECONDS
from covey.planner.build import build
from covey.planner.cost_table import load_costs
from covey.planner.switching import SwitchCosts
from covey_client.costs.surface import Surface
from covey_client.costs.table import CostTable
from loadtest.simulation.virtual import VirtualClock

MODEL = HashModel(1000, low=8)
NAME = "draft"
DEPTH = 6


def table(base: float = 0.03, per_token: float = 0.0005, knee: int = 32) -> CostTable:
    counts = (1, 2, 4, 8, 16, knee, 64, 256, 4096)
    verify = tuple((rows, n, base + per_token * max(0, n - knee)) for rows in (1, 64) for n in counts if n >= rows)
    draft = tuple((rows, depth, 0.001 + 0.002 * depth) for rows in (1, 64) for depth in (1, 8))
    switch = tuple((lag, rows, 0.002 + 1e-6 * lag * rows) for lag in (1, 512) for rows in (1, 64))
    return CostTable("made up", "for tests", verify, (), {NAME: draft}, {NAME: switch})


class Jittery(VirtualClock):
    """Every sleep takes a few percent more or less, and in one of fifty the machine pauses."""

    def __init__(self) -> None:
        super().__init__()
        self._rng = np.random.default_rng(0)

    def sleep(self, seconds: float) -> None:
        pause = 0.02 if seconds and self._rng.random() < 0.02 else 0.0
        super().sleep(seconds * max(0.5, float(self._rng.normal(1.0, 0.04))) + pause)


class Deployment:
    """A target and a drafter in virtual time."""

    def __init__(self, costs: CostTable, *, rates: tuple[float, ...] = (0.7,), blocks: int = 4096) -> None:
        self.clock = Jittery()
        self.target = EmulatedTarget(costs, MODEL, self.clock, blocks=blocks)
        self.drafter = EmulatedDrafter(costs, MODEL, self.clock, name=NAME, rates={"": rates})
        self.further: dict[str, EmulatedDrafter] = {}
        speculation = SpeculationSettings(drafters=(NAME,), max_depth=DEPTH, draft_deadline_ms=60000)
        self.profile = Profile("test", scheduler=SchedulerSettings(token_budget=512), speculation=speculation)

    def curves(self, folder: Path | None = None, **given: object) -> Curves:
        drafters = {NAME: self.drafter, **self.further}
        return Curves(self.target, drafters, self.profile, self.clock, folder, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("base", [0.002, 0.03, 0.25])
def test_an_emulated_table_is_found_within_noise_and_in_bounded_time(base: float) -> None:
    costs = table(base)
    made = Deployment(costs)
    found = made.curves().get()
    assert made.clock.now() <= SECONDS * max(1.0, 3 * base / LONG_ROUND) + 1.0, (
        "3 s, or as many rounds of a slow device"
    )
    verify, draft = Surface(costs.verify), Surface(costs.draft[NAME])
    for rows, tokens, seconds in found.verify:
        assert seconds == pytest.approx(verify(rows, tokens), rel=0.15), (rows, tokens)
    for rows, depth, seconds in found.draft[NAME]:
        assert seconds == pytest.approx(draft(rows, depth), rel=0.15), (rows, depth)
    assert {rows for rows, _ in found.plain} >= {1, 4, 16}, "plain rounds come first"
    assert {depth for _, depth, _ in found.draft[NAME]} >= {2, DEPTH}
    assert made.target.used == 0, "it leaves nothing behind"


def test_the_first_choice_on_measured_curves_is_the_device_s_own() -> None:
    """Where passes are long whatever is in them drafting pays; where every token costs, it does not."""
    for per_token, drafts in ((0.00001, True), (0.004, False)):
        made = Deployment(table(0.01, per_token, knee=1))
        policy = build(made.profile.speculation, (NAME,), costs=made.curves().get()).policy
        assert (policy.choose(Situation(16, DEPTH, 0, 0, ((NAME, 16),))) > 0) == drafts


def test_kept_until_weights_threads_or_limits_change(tmp_path: Path) -> None:
    first = Deployment(table()).curves(tmp_path).get()
    again = Deployment(table())
    assert again.curves(tmp_path).get() == first
    assert again.clock.now() == 0.0, "nothing was measured"
    others = [Deployment(table(0.031)), Deployment(table()), Deployment(table())]
    others[1].drafter._info = replace(others[1].drafter._info, identity="other weights")
    scheduler = replace(others[2].profile.scheduler, max_running=8)
    others[2].profile = replace(others[2].profile, scheduler=scheduler)
    for count, other in enumerate(others, 2):
        other.curves(tmp_path).get()
        assert other.clock.now() > 0.0
        assert len(list(tmp_path.iterdir())) == count


@pytest.mark.parametrize("damage", ["cut", "other", "folder"])
def test_a_damaged_table_is_named_and_measured_again(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Deployment(table()).curves(tmp_path).get()
    (path,) = tmp_path.iterdir()
    whole = path.read_text()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_text(whole[:200] if damage == "cut" else whole.replace(first.name, "0" * 32))
    again = Deployment(table())
    with caplog.at_level(logging.WARNING):
        found = again.curves(tmp_path).get()
    assert again.clock.now() > 0.0
    assert found.verify
    assert str(path) in caplog.text
    assert damage == "folder" or path.read_text() != whole[:200]
    assert damage == "folder" or load_costs(path) == found


class Silent(EmulatedDrafter):
    """Answers nothing, and says who it is once it is `up`."""

    up = False

    def info(self) -> DrafterInfo:
        if not self.up:
            raise PortError("loading")
        return super().info()

    def draft(self, work: DraftWork) -> DraftReply:  # noqa: ARG002
        raise PortError("broken")


def further(made: Deployment, name: str, slower: float, of: type[EmulatedDrafter] = EmulatedDrafter) -> None:
    """A drafter beside the first that takes so many times as long for everything."""
    costs = table()
    draft = tuple((rows, depth, slower * seconds) for rows, depth, seconds in costs.draft[NAME])
    switch = tuple((lag, rows, slower * seconds) for lag, rows, seconds in costs.switch[NAME])
    costs = replace(costs, draft={name: draft}, switch={name: switch})
    made.further[name] = of(costs, MODEL, made.clock, name=name, rates={"": (0.5,)})


def test_each_drafter_has_a_curve_and_a_switch_cost_of_its_own() -> None:
    made = Deployment(table())
    for name, slower in (("slow", 3.0), ("quick", 0.5)):
        further(made, name, slower)
    found = made.curves().get()
    assert made.clock.now() <= SECONDS + 2 * FURTHER + 1.0
    assert set(found.draft) == set(found.switch) == {NAME, "slow", "quick"}
    usual = Surface(table().draft[NAME])
    for name, slower in ((NAME, 1.0), ("slow", 3.0), ("quick", 0.5)):
        for rows, depth, seconds in found.draft[name]:
            assert seconds == pytest.approx(slower * usual(rows, depth), rel=0.15), (name, rows, depth)
        assert len({depth for rows, depth, _ in found.draft[name] if rows == 1}) > 1, "what a call takes, and a step"
        assert len({rows for rows, _, _ in found.draft[name]}) > 1
    costs = {name: SwitchCosts(found.switch).of(name)(8, 1) for name in found.switch}
    assert costs["slow"] == pytest.approx(3 * costs[NAME], rel=0.3)
    assert costs["quick"] == pytest.approx(0.5 * costs[NAME], rel=0.3)


def test_a_further_drafter_that_fails_has_no_curve_and_hinders_nobody(tmp_path: Path) -> None:
    made = Deployment(table())
    further(made, "silent", 1.0, Silent)
    further(made, "last", 1.0)
    assert set(made.curves(tmp_path).get().draft) == {NAME, "last"}
    before = made.clock.now()
    made.curves(tmp_path).get()
    assert made.clock.now() == before, "they are kept for those that answered"
    made.further["silent"].up = True  # type: ignore[attr-defined]
    assert set(made.curves(tmp_path).get().draft) == {NAME, "last"}
    assert made.clock.now() > before, "it is tried when it is there"


def test_who_does_not_know_himself_is_measured_and_not_kept(tmp_path: Path) -> None:
    made = Deployment(table())
    made.target._info = replace(made.target._info, identity="")
    assert made.curves(tmp_path).get().verify
    assert not list(tmp_path.iterdir())


def test_a_request_ends_it_and_what_was_seen_is_used_but_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = Deployment(table())
    rounds: Iterator[bool] = iter([True] * 9)
    found = made.curves(tmp_path, go_on=lambda: next(rounds, False)).get()
    assert made.clock.now() < 0.5
    assert found.plain
    assert not list(tmp_path.iterdir())
    assert "cut short" in caplog.text
    assert not Deployment(table()).curves(go_on=lambda: False).get().verify


def test_a_target_that_fails_is_no_hindrance(tmp_path: Path) -> None:
    class Failing(EmulatedTarget):
        def step(self, work: TargetWork) -> TargetReply:  # noqa: ARG002
            raise PortError("gone")

    made = Deployment(table())
    made.target = Failing(table(), MODEL, made.clock, blocks=64)
    assert not made.curves(tmp_path).get().verify
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("base", [0.03, 0.25], ids=["rounds", "long rounds, one to a visit"])
def test_curves_of_a_machine_that_was_busy_for_a_while_are_not_kept(
    base: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = Deployment(table(base))
    sleep, busy = made.clock.sleep, SECONDS / 2 * max(1.0, base / LONG_ROUND)
    made.clock.sleep = lambda seconds: sleep(seconds * (2.0 if made.clock.now() < busy else 1.0))  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING, logger="covey"):
        assert made.curves(tmp_path).get().plain, "they are better than nothing"
    assert "other work" in caplog.text
    assert not list(tmp_path.iterdir())
    Deployment(table(base)).curves(tmp_path).get()
    assert list(tmp_path.iterdir()), "those of a quiet one are"


def test_a_small_pool_measures_small_batches() -> None:
    assert {rows for rows, _ in Deployment(table(), blocks=40).curves().get().plain} == {1, 2, 4}

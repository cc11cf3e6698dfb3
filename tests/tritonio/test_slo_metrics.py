"""What became of objectives, in each answer and added up on the metrics port, and what rounds count there."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import numpy as np
import pytest

from covey.contracts.errors import Overloaded, PortError
from covey.contracts.types import NO_OBJECTIVE, Finish, Objective, Progress, Request, Sampling
from covey.requests.rounds import Plan, RoundRecord
from covey.text.streaming import REFUSED, Streamer
from covey.tritonio.drafts import Drafts
from covey_client.status import KEY
from tests.fakes import ManualClock
from tests.public_model.worlds import Outlet
from tests.tritonio.adapters import load


class Counted:
    """Stands in for Triton's metric families: what was added to each series."""

    def __init__(self) -> None:
        self.totals: Counter[tuple[str, str, str]] = Counter()

    def family(self, name: str, **_more: Any) -> Any:
        def series(labels: dict[str, str], **_more: Any) -> Any:
            def increment(value: float) -> None:
                which = labels.get("outcome", "") or labels.get("at_most", "")
                self.totals[name, labels.get("slo_class", ""), which] += value  # type: ignore[assignment]

            return MagicMock(increment=increment)

        return SimpleNamespace(Metric=series)


class Nobody:
    def cancel(self, key: int, finish: Finish = Finish.CANCELLED) -> None: ...


class Bench:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        _, fake = load(monkeypatch, "orchestrator")
        from covey.tritonio.metrics import Metrics

        self.counted, self.clock = Counted(), ManualClock()
        fake.MetricFamily.side_effect = self.counted.family
        self.metrics = Metrics("covey")
        self.streamer = Streamer(None, self.clock, served=self.metrics.served)
        self.streamer.start(Nobody())
        self.keys = 0

    def answer(
        self, objective: Objective, *steps: tuple[float, int], end: Finish, error: Exception | None = None
    ) -> Outlet:
        """One request that came at 0, with so many tokens at each of these times."""
        self.keys, outlet = self.keys + 1, Outlet()
        asked = Request(self.keys, np.array([1], np.int32), 8, Sampling(), 1, objective=objective)
        self.streamer.begin(asked, outlet, stream=True)
        for step, (at, tokens) in enumerate(steps):
            self.clock.time = at
            ids, last = np.ones(tokens, np.int32), step == len(steps) - 1
            self.streamer.publish(
                [Progress(self.keys, ids, np.zeros(tokens, np.float32), end if last else None, error if last else None)]
            )
            while len(outlet.chunks) <= step and not outlet.ended.wait(0.001):
                pass
        assert outlet.ended.wait(5)
        return outlet

    def close(self) -> Counter[tuple[str, str, str]]:
        self.streamer.stop()
        self.metrics.stop()
        return self.counted.totals


OBJECTIVE = Objective("chat", 1.0, 0.1)


@pytest.mark.parametrize(
    ("objective", "steps", "attainment"),
    [
        (OBJECTIVE, ((1.0, 1), (1.5, 5)), "met"),
        (OBJECTIVE, ((1.1, 1), (1.5, 5)), "missed"),
        (OBJECTIVE, ((1.0, 1), (1.6, 5)), "missed"),
        (OBJECTIVE, ((1.0, 1),), "met"),
        (Objective("chat", 1.0, measured=False), ((0.5, 1), (9.0, 2)), "unknown"),
        (Objective("", 1.0), ((0.5, 1), (9.0, 2)), "met"),
        (NO_OBJECTIVE, ((0.5, 1), (9.0, 2)), ""),
    ],
)
def test_an_answer_says_what_was_measured_and_whether_that_was_enough(
    monkeypatch: pytest.MonkeyPatch, objective: Objective, steps: tuple[tuple[float, int], ...], attainment: str
) -> None:
    bench = Bench(monkeypatch)
    *before, last = bench.answer(objective, *steps, end=Finish.LENGTH).chunks
    bench.close()
    assert last.attainment == attainment
    assert {chunk.attainment for chunk in before} <= {""}
    first, tokens = steps[0][0], sum(count for _, count in steps)
    assert last.ttft == first
    assert last.tpot == (pytest.approx((steps[-1][0] - first) / (tokens - 1)) if tokens > 1 else None)


def test_gaps_between_tokens_are_counted_as_a_histogram_does(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    for _ in range(2):
        bench.answer(NO_OBJECTIVE, (1.0, 1), (1.004, 3), (1.504, 1), (9.504, 2), end=Finish.LENGTH)
    bench.answer(NO_OBJECTIVE, (1.0, 5), (2.0, 1), end=Finish.LENGTH)
    totals = bench.close()
    name = "covey_inter_token_gaps_total"
    counts = {bound: totals[name, "", bound] for bound in ("0.002", "0.005", "0.2", "1.0", "5.0", "+Inf")}
    assert counts == {"0.002": 0, "0.005": 2, "0.2": 2, "1.0": 5, "5.0": 5, "+Inf": 7}
    assert totals["covey_inter_token_gap_seconds_total", "", ""] == pytest.approx(1.0 + 2 * 8.504)


def test_the_counters_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, fast, custom = Bench(monkeypatch), Objective("fast", 0.2, 0.05), Objective("", 0.5)
    whole: list[tuple[Finish, Exception | None]] = [(Finish.LENGTH, None), (Finish.EOS, None)]
    broken: list[tuple[Finish, Exception | None]] = [(Finish.CANCELLED, None), (Finish.ERROR, PortError("gone"))]
    for objective in (OBJECTIVE, fast, custom, NO_OBJECTIVE):
        for tokens, (end, error) in enumerate([*whole, *broken], start=3):
            bench.answer(objective, (0.1, 1), (0.1 + 0.04 * tokens, tokens), end=end, error=error)
            bench.answer(objective, (2.0, 1), (2.0 + 0.04 * tokens, tokens), end=end, error=error)
    for _ in range(3):
        bench.answer(OBJECTIVE, (0.1, 0), end=Finish.ERROR, error=Overloaded("not in time"))
    bench.metrics.refused(fast)
    bench.metrics.refused(NO_OBJECTIVE)
    totals = bench.close()
    slo = {key[1:]: value for key, value in totals.items() if key[0] == "covey_slo_requests_total"}
    each = {"met": 2, "missed": 2, "unfinished": 4}
    assert slo == {
        **{(name, outcome): count for name in ("chat", "fast", "custom") for outcome, count in each.items()},
        **{("chat", "refused"): 3, ("fast", "refused"): 1},
    }
    for name in ("chat", "fast", "custom"):
        assert totals["covey_slo_good_tokens_total", name, ""] == 4 + 5
    assert totals["covey_requests_total", "", "refused"] == 5


def test_the_figures_that_status_shows_first_are_metrics_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, "orchestrator")
    from covey.tritonio.metrics import COUNTERS, GAUGES, HISTOGRAMS

    means = (f"{name}_mean" for name in HISTOGRAMS)
    assert {key.partition("{")[0] for key in KEY} <= {*COUNTERS, *GAUGES, *means}


def test_rounds_are_counted_with_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    record = RoundRecord(
        **dict.fromkeys(("rows", "decoding", "trees", "running", "waiting"), 1),
        **{"prefill_tokens": 5, "drafted": 4, "accepted": 2, "emitted": 3, "reused": 7, "preempted": 2},
        **{f"{phase}_seconds": 0.5 for phase in ("plan", "draft", "verify", "pass", "commit", "catch_up")},
        **{"free_blocks": 6, "total_blocks": 8, "sizes": np.array([4]), "accepts": np.array([2])},
        plan=MagicMock(drafter=["draft_a"]),
    )
    for _ in range(3):
        bench.metrics.round(record)
    bench.metrics.stop()
    found = {name: value for (name, _, _), value in bench.counted.totals.items()}
    assert found["covey_rounds_total"] == 3
    assert found["covey_generation_tokens_total"] == 9
    assert found["covey_prefill_tokens_total"] == 15
    assert found["covey_prefix_cache_hit_tokens_total"] == 21
    assert found["covey_preemptions_total"] == 2, "a record has their number so far"
    assert found["covey_round_seconds_total"] == 3 * (0.5 + 0.5 + 0.5 + 0.5)
    assert found["covey_spec_decode_num_draft_tokens_total"] == 12


def test_the_flushing_thread_counts_rounds_and_survives_one_that_it_cannot_count(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench, counting = Bench(monkeypatch), []

    def count(record: RoundRecord) -> None:
        counting.append(threading.current_thread().name)
        raise ValueError(record)

    monkeypatch.setattr(bench.metrics, "_count", count)
    for _ in range(3):
        bench.metrics.round(MagicMock())
    bench.metrics.refused(NO_OBJECTIVE)
    bench.metrics.stop()
    assert counting == ["metrics"], "what failed once is not called again"
    assert bench.counted.totals["covey_requests_total", "", REFUSED] == 1
    assert "metrics failed and stays off" in caplog.text


PREFIX = "covey_spec_decode_num_"


def drafted(drafters: list[str], sizes: list[int], accepts: list[int]) -> RoundRecord:
    counts = np.asarray(sizes, np.int32)
    plan = Plan(counts, np.ones(len(sizes), np.int32), tuple(drafters))
    trees, found = int(np.count_nonzero(counts)), np.asarray(accepts, np.int32)
    return cast("RoundRecord", SimpleNamespace(trees=trees, plan=plan, sizes=counts, accepts=found, read={}))


def totals(drafts: Drafts) -> dict[tuple[str, ...], float]:
    found = list(drafts.totals())
    assert max(Counter((name, *labels.values()) for name, labels, _ in found).values(), default=1) == 1
    return {(name.removeprefix(PREFIX), *labels.values()): value for name, labels, value in found}


def test_counts_by_drafter_and_position() -> None:
    """Rounds without drafts count nothing."""
    drafts = Drafts()
    drafts.add(drafted(["a", "b", "", "a"], [3, 2, 0, 3], [2, 0, 0, 3]))
    drafts.add(drafted(["a", ""], [5, 0], [5, 0]))
    drafts.add(drafted(["a"], [2], [0]))
    drafts.add(drafted(["", ""], [0, 0], [0, 0]))
    drafts.add(drafted([], [], []))
    assert totals(drafts) == {
        ("drafts_total", "a"): 4,
        ("draft_tokens_total", "a"): 13,
        ("accepted_tokens_total", "a"): 10,
        ("accepted_tokens_per_pos_total", "a", "0"): 3,
        ("accepted_tokens_per_pos_total", "a", "1"): 3,
        ("accepted_tokens_per_pos_total", "a", "2"): 2,
        ("accepted_tokens_per_pos_total", "a", "3"): 1,
        ("accepted_tokens_per_pos_total", "a", "4"): 1,
        ("drafts_total", "b"): 1,
        ("draft_tokens_total", "b"): 2,
        ("accepted_tokens_total", "b"): 0,
    }

"""What became of objectives: in each answer, and added up on the metrics port."""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from covey.contracts.errors import Overloaded, PortError
from covey.contracts.types import NO_OBJECTIVE, Finish, Objective, Progress, Request, Sampling
from covey.requests.rounds import RoundRecord
from covey.text.streaming import REFUSED, Streamer
from covey_client.status import KEY
from tests.fakes import ManualClock
from tests.public_model.worlds import Outlet
from tests.tritonio.adapters import load


class Counted:
    """Stands in for Triton's metric families: what was added to each series."""

    def __init__(self) -> None:
        self.totals: Counter[tuple[str, str, str]] = Counter()

    def family(self, name: str, **_more: Any) -> Any:
        totals = self.totals

        class Family:
            def Metric(self, labels: dict[str, str], **_more: Any) -> Any:
                class Series:
                    def increment(self, value: float) -> None:
                        which = labels.get("outcome", "") or labels.get("at_most", "")
                        totals[name, labels.get("slo_class", ""), which] += value  # type: ignore[assignment]

                    def set(self, value: float) -> None: ...

                    def observe(self, value: float) -> None: ...

                return Series()

        return Family()


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
    bench, rng = Bench(monkeypatch), random.Random(3)
    classes = (Objective("chat", 1.0, 0.1), Objective("fast", 0.2, 0.05), Objective("", 0.5), NO_OBJECTIVE)
    asked: Counter[str] = Counter()
    good: Counter[str] = Counter()
    for _ in range(60):
        objective, tokens = rng.choice(classes), rng.randrange(1, 9)
        ends = [(Finish.LENGTH, None), (Finish.EOS, None), (Finish.CANCELLED, None), (Finish.ERROR, PortError("gone"))]
        end, error = rng.choice(ends)
        first = rng.choice([0.1, 0.4, 2.0])
        done = bench.answer(
            objective, (first, 1), (first + rng.choice([0.01, 0.08, 1.0]) * tokens, tokens), end=end, error=error
        )
        asked[objective.label] += 1
        if done.chunks[-1].attainment == "met":
            good[objective.label] += done.chunks[-1].num_output
    for _ in range(3):
        bench.answer(OBJECTIVE, (0.1, 0), end=Finish.ERROR, error=Overloaded("not in time"))
        asked["chat"] += 1
    bench.metrics.refused(classes[1])
    bench.metrics.refused(NO_OBJECTIVE)
    asked["fast"] += 1
    totals = bench.close()
    counted: Counter[str] = Counter()
    for (name, slo_class, _), value in totals.items():
        if name == "covey_slo_requests_total":
            counted[slo_class] += value
    assert counted == {label: count for label, count in asked.items() if label}
    assert {label for label in counted if label} == {"chat", "fast", "custom"}
    tokens_by_class = {
        slo_class: value for (name, slo_class, _), value in totals.items() if name == "covey_slo_good_tokens_total"
    }
    assert tokens_by_class == {label: count for label, count in good.items() if label}
    assert totals["covey_slo_requests_total", "chat", "refused"] == 3
    assert totals["covey_slo_requests_total", "fast", "refused"] == 1
    assert totals["covey_requests_total", "", "refused"] == 5
    assert sum(totals["covey_slo_requests_total", name, "unfinished"] for name in counted) > 0


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

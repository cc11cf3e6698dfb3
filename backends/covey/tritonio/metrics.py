"""`covey_*` metrics on Triton's metrics port. An increment costs 20 us, so the engine's thread only keeps its rounds.
Another thread counts them and flushes counters a few times a second."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from covey.contracts.types import Attainment, Finish, Objective, TargetInfo
from covey.process.guard import Guard
from covey.requests.rounds import RoundRecord
from covey.text.model_folder import ModelFolder
from covey.text.streaming import REFUSED, Served
from covey.tritonio.drafts import Drafts

FLUSH_SECONDS = 0.25
MOST_ROUNDS = 10_000  # kept for a flush, should the flushing thread have ended

SET_ASIDE = {
    "covey_set_aside_total": "Parts that failed to plan, learn or observe: the model serves without them until its "
    "process ends",
}
COUNTERS = {
    "covey_requests_total": "Requests by outcome",
    "covey_prompt_tokens_total": "Prompt tokens of finished requests",
    "covey_generation_tokens_total": "Tokens generated",
    "covey_rounds_total": "Rounds of the engine",
    "covey_round_seconds_total": "Time of rounds by phase: plan, draft, pass (inside the target), transport, commit",
    "covey_prefix_cache_hit_tokens_total": "Prompt tokens whose KV was reused",
    "covey_prefill_tokens_total": "Tokens computed as prefill",
    "covey_preemptions_total": "Requests put back because the KV pool was exhausted",
    "covey_spec_decode_num_drafts_total": "Trees verified, by drafter",
    "covey_spec_decode_num_draft_tokens_total": "Tokens drafted",
    "covey_spec_decode_num_accepted_tokens_total": "Drafted tokens accepted",
    "covey_spec_decode_num_accepted_tokens_per_pos_total": "Drafts of which the token at the position was accepted",
    "covey_planner_rounds_total": "Rounds by the draft depth that the policy chose, and why",
    "covey_planner_switches_total": "Changes to drafting (on) and to plain decoding (off)",
    "covey_planner_predicted_seconds_total": "Time that the policy expected rounds to take for the tokens they brought",
    "covey_planner_observed_seconds_total": "Time that those rounds took",
    "covey_planner_regret_seconds_total": "Time lost by depths chosen over those expected to be best, as estimated",
    "covey_drafter_chosen_total": "Rows of rounds by the drafter that was chosen for them, and why",
    "covey_slo_requests_total": "Requests with a latency objective by class and outcome: met, missed, unknown (no "
    "baseline yet), refused, unfinished",
    "covey_slo_good_tokens_total": "Tokens of requests that met their objective, by class: their rate is the goodput",
    "covey_tree_nodes_total": "Nodes of trees from which nodes are selected: proposed, selected, accepted",
    "covey_tree_budget_tokens_total": "Tokens of their budget that were verified (used), and that there was room for "
    "(allowed)",
    "covey_slo_needs_total": "Rows of rounds with a time per token to keep, by how many tokens they needed at most",
    "covey_memory_operations_total": "Loads and unloads of drafters, and resizes of the KV pool (expand, contract), by "
    "outcome: done, failed or refused (the last two are retried)",
    "covey_memory_seconds_total": "Time of those operations; for expand and contract, the time that rounds waited",
    "covey_drafter_failures_total": "Failures of a drafter: calls that were late or broken, and ends of its process",
    **SET_ASIDE,
    # A histogram to which many values are added at once: Triton's own takes them singly, 30 us each. Only Triton may
    # use the names and labels of histograms.
    "covey_inter_token_gaps_total": "Gaps between rounds that brought a finished request tokens, of at most `at_most` "
    "seconds",
    "covey_inter_token_gap_seconds_total": "The sum of those gaps",
}
GAUGES = {
    "covey_target_info": "Always 1; its labels say what is served, on which device (emulated: none), in which "
    "numerics, and which drafters were left out because they do not fit",
    "covey_requests_running": "Requests in the batch",
    "covey_requests_waiting": "Requests in the queue",
    "covey_drafter_serving": "1 while the drafter can be asked; 0 while it is late, or in backoff after a failure",
    "covey_drafter_resident_bytes": "Memory that each drafter's process alone holds; 0 if it does not answer",
    "covey_drafter_resident": "1 while the drafter is in memory; 0 from its unload until it is back",
    "covey_memory_bytes": "Of the target's device, by part: the budget, the KV pool, the drafters in memory",
    "covey_kv_blocks_gained": "KV blocks beyond those that the target was loaded with",
    "covey_slo_target_seconds": "Objectives of a class, for ttft and tpot; a relative one once the baseline is known",
    "covey_kv_blocks": "KV blocks by state: used, free (never used, or kept for reuse)",
}
# From a drafter's own process; `origin` is the server that calls it.
DRAFT_COUNTERS = {
    "covey_draft_calls_total": "Calls to a drafter by origin and outcome: drafted, late (its draft would be), failed",
    "covey_draft_wait_seconds_total": "Time that calls waited for their turn; by call it is the paper's T_wait",
    "covey_draft_service_seconds_total": "Time that the drafter worked for each origin",
    "covey_draft_levels_total": "Levels of drafts; service by level is t_s",
    "covey_draft_idle_seconds_total": "Time in which the drafter had nothing to do; by call it is T_idle",
    "covey_draft_joined_total": "Calls that went along in another origin's pass",
    **SET_ASIDE,
}
DRAFT_GAUGES = {
    "covey_draft_senders": "Senders that the drafter serves",
    "covey_draft_step_seconds": "t_s of late: a level of a draft for one row",
}
HISTOGRAMS: Mapping[str, tuple[str, list[float]]] = {
    "covey_time_to_first_token_seconds": (
        "From a request's arrival to its first token",
        [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30],
    ),
    "covey_time_per_output_token_seconds": (
        "Mean time between a request's tokens",
        [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1],
    ),
    "covey_request_seconds": (
        "From a request's arrival to its end",
        [0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300],
    ),
    "covey_request_queue_seconds": (
        "From a request's arrival to the round that it first ran in",
        [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60],
    ),
    "covey_request_prompt_tokens": (
        "Tokens of a finished request's prompt",
        [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000],
    ),
    "covey_request_generation_tokens": (
        "Tokens of a finished request's output",
        [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000],
    ),
}
GAPS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)  # covey_inter_token_gaps_total

Labels = tuple[tuple[str, str], ...]
Totals = Callable[[], Iterable[tuple[str, dict[str, str], float]]]


class Metrics:
    """Owns the metric families of one orchestrator or drafter; every series has the label `model`."""

    def __init__(
        self,
        model: str,
        counters: Mapping[str, str] = COUNTERS,
        gauges: Mapping[str, str] = GAUGES,
        histograms: Mapping[str, tuple[str, list[float]]] = HISTOGRAMS,
        *,
        guard: Guard | None = None,
    ) -> None:
        self._model = model
        self._families: dict[str, Any] = {}
        self._series: dict[tuple[str, Labels], Any] = {}
        kinds = pb_utils.MetricFamily
        for name, help_text in counters.items():
            self._families[name] = pb_utils.MetricFamily(name=name, description=help_text, kind=kinds.COUNTER)
        for name, help_text in gauges.items():
            self._families[name] = pb_utils.MetricFamily(name=name, description=help_text, kind=kinds.GAUGE)
        for name, (help_text, _buckets) in histograms.items():
            self._families[name] = pb_utils.MetricFamily(name=name, description=help_text, kind=kinds.HISTOGRAM)
        self._lock = threading.Lock()
        self._added: dict[tuple[str, Labels], float] = defaultdict(float)
        self._set: dict[tuple[str, Labels], float] = {}
        self._observed: list[tuple[str, float]] = []
        self._rounds = deque[RoundRecord](maxlen=MOST_ROUNDS)  # not counted yet
        self._drafts = Drafts()
        self._guard = guard or Guard()
        self._followed: list[Totals] = [self._guard.figures, self._drafts.totals]
        self._watched: list[Totals] = []
        self._shown: dict[tuple[str, Labels], float] = {}
        self._reached: dict[tuple[str, Labels], float] = defaultdict(float)
        self._preempted = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def target(self, info: TargetInfo, left_out: tuple[str, ...], folder: ModelFolder) -> None:
        """Set the gauges of a target that is up, so that routers and autoscalers find them before the first round.
        `left_out` are drafters that do not fit the target."""
        with self._lock:
            self._put_load(running=0, waiting=0, used=0, free=info.total_blocks)
            for outcome in (*(finish.value for finish in Finish), REFUSED):  # else a rate would miss the first of each
                self._add("covey_requests_total", 0, outcome=outcome)
            self._put(
                "covey_target_info",
                1,
                target=info.model,
                device=info.device,
                dtype=info.dtype,
                numerics=info.numerics,
                identity=info.identity,
                left_out=", ".join(left_out),
                end_tokens=", ".join(map(str, info.end_ids)),
                sampling_defaults=", ".join(f"{name} {value}" for name, value in folder.sampling.items()),
                chat_template="yes" if folder.has_chat_template else "no",
                longest=str(info.longest),
                pool_tokens=str(info.pool_tokens),
            )

    def round(self, record: RoundRecord) -> None:
        """Keep a round, which is counted with the next flush. The engine's thread calls it once a round."""
        self._rounds.append(record)

    def _count(self, record: RoundRecord) -> None:
        add = self._add
        add("covey_rounds_total", 1)
        add("covey_generation_tokens_total", record.emitted)
        add("covey_prefill_tokens_total", record.prefill_tokens)
        add("covey_prefix_cache_hit_tokens_total", record.reused)
        self._drafts.add(record)
        add("covey_preemptions_total", record.preempted - self._preempted)
        self._preempted = record.preempted
        transport = record.verify_seconds - record.pass_seconds
        for phase, seconds in (
            ("plan", record.plan_seconds),
            ("draft", record.draft_seconds),
            ("pass", record.pass_seconds),
            ("transport", transport),
            ("commit", record.commit_seconds),
        ):
            add("covey_round_seconds_total", max(0.0, seconds), phase=phase)
        used = record.total_blocks - record.free_blocks
        self._put_load(running=record.running, waiting=record.waiting, used=used, free=record.free_blocks)

    def _put_load(self, *, running: int, waiting: int, used: int, free: int) -> None:
        self._put("covey_requests_running", running)
        self._put("covey_requests_waiting", waiting)
        self._put("covey_kv_blocks", used, state="used")
        self._put("covey_kv_blocks", free, state="free")

    def served(self, served: Served) -> None:
        """Count a request that has ended. The streamer's thread calls it once a request."""
        with self._lock:
            self._add("covey_requests_total", 1, outcome=served.outcome)
            if served.attainment is not None:
                self._attained(served.slo, served.attainment, served.num_output)
            self._add("covey_prompt_tokens_total", served.num_input)
            if served.first_token is not None:
                self._observed.append(("covey_time_to_first_token_seconds", served.first_token))
            if served.per_token is not None:
                self._observed.append(("covey_time_per_output_token_seconds", served.per_token))
            self._observed.append(("covey_request_seconds", served.total))
            if served.progress.queued is not None:
                self._observed.append(("covey_request_queue_seconds", served.progress.queued))
                self._observed.append(("covey_request_prompt_tokens", served.num_input))
                self._observed.append(("covey_request_generation_tokens", served.num_output))
            self._between(served.gaps)

    def refused(self, objective: Objective) -> None:
        """Count a request that was refused on arrival. Any thread may call it."""
        with self._lock:
            self._add("covey_requests_total", 1, outcome=REFUSED)
            if objective.label:
                self._attained(objective.label, Attainment.REFUSED)

    def drafter_failed(self, drafter: str) -> None:
        with self._lock:
            self._add("covey_drafter_failures_total", 1, drafter=drafter)

    def follow(self, totals: Totals) -> None:
        """Add counters from a source, which is asked at every flush, on the flushing thread."""
        self._followed.append(totals)

    def watch(self, gauges: Totals) -> None:
        """Add gauges from a source, which is asked at every flush, on the flushing thread."""
        self._watched.append(gauges)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _between(self, gaps: Sequence[float]) -> None:
        if not gaps:
            return
        reached = np.searchsorted(np.sort(gaps), GAPS, side="right").tolist()
        for bound, count in zip((*map(str, GAPS), "+Inf"), (*reached, len(gaps))):
            self._add("covey_inter_token_gaps_total", count, at_most=bound)
        self._add("covey_inter_token_gap_seconds_total", sum(gaps))

    def _attained(self, slo_class: str, attainment: Attainment, tokens: int = 0) -> None:
        self._add("covey_slo_requests_total", 1, slo_class=slo_class, outcome=attainment.value)
        if attainment is Attainment.MET:
            self._add("covey_slo_good_tokens_total", tokens, slo_class=slo_class)

    def _add(self, name: str, value: float, **labels: str) -> None:
        self._added[name, tuple(sorted(labels.items()))] += value

    def _put(self, name: str, value: float, **labels: str) -> None:
        self._set[name, tuple(sorted(labels.items()))] = value

    def _run(self) -> None:
        while not self._stopped.wait(FLUSH_SECONDS):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        with self._lock:
            while self._rounds:
                self._guard("metrics", self._count, self._rounds.popleft())
            added, self._added = self._added, defaultdict(float)
            put, self._set = self._set, {}
            observed, self._observed = self._observed, []
        for key, total in self._told(self._followed):
            added[key] += total - self._reached[key]
            self._reached[key] = total
        for key, value in self._told(self._watched):
            if self._shown.get(key) != value:
                put[key] = self._shown[key] = value
        for (name, labels), value in added.items():
            self._metric(name, labels).increment(value)
        for (name, labels), value in put.items():
            self._metric(name, labels).set(value)
        for name, value in observed:
            self._metric(name, ()).observe(value)

    def _told(self, sources: Iterable[Totals]) -> Iterator[tuple[tuple[str, Labels], float]]:
        """Yield the current values of each source; none from a source that failed before."""
        for source in sources:
            for name, labels, value in self._guard(source.__qualname__, _listed, source) or ():
                yield (name, tuple(sorted(labels.items()))), value

    def _metric(self, name: str, labels: Labels) -> Any:
        series = self._series.get((name, labels))
        if series is None:
            all_labels = {"model": self._model, **dict(labels)}
            if name in HISTOGRAMS:
                series = self._families[name].Metric(labels=all_labels, buckets=HISTOGRAMS[name][1])
            else:
                series = self._families[name].Metric(labels=all_labels)
            self._series[name, labels] = series
        return series


def _listed(source: Totals) -> list[tuple[str, dict[str, str], float]]:
    """Return all values of a source as a list, so that its errors are raised here."""
    return list(source())

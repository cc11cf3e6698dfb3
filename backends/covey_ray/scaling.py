"""Decides how many replicas a load needs, from what the servers say of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ray.serve.config import AutoscalingContext

from covey_client.status import Sample

RUNNING, WAITING, ATTAINED = "running", "waiting", "attained"
OUTCOMES = "covey_slo_requests_total"
COUNTED = {"vllm:num_requests_running": RUNNING, "vllm:num_requests_waiting": WAITING}  # Covey's front has them, too


class Load:
    """The load of one server, from its metrics. Owns how its objectives stood when they were last read."""

    def __init__(self) -> None:
        self._before = (0.0, 0.0)

    def read(self, samples: Iterable[Sample]) -> dict[str, float]:
        """Return how many requests run and wait, and the share of those since the last reading that met their
        objectives; no share where none had one."""
        found, met, missed = {RUNNING: 0.0, WAITING: 0.0}, 0.0, 0.0
        for sample in samples:
            if sample.name in COUNTED:
                found[COUNTED[sample.name]] += sample.value
            elif sample.name == OUTCOMES:
                met += sample.value if sample.labels.get("outcome") == "met" else 0.0
                missed += sample.value if sample.labels.get("outcome") == "missed" else 0.0
        if met < self._before[0] or missed < self._before[1]:
            self._before = (0.0, 0.0)  # the server was started again
        new = met - self._before[0], missed - self._before[1]
        self._before = met, missed
        return found | ({ATTAINED: new[0] / sum(new)} if sum(new) > 0 else {})


class Needed:
    """A policy for Serve's autoscaling, which has the bounds and the delays. `target_ongoing_requests` is how many
    requests a replica is to run at once."""

    def __init__(self, attainment: float = 0.95) -> None:
        """`attainment` is the share of requests with objectives that are to meet them."""
        self._attainment = attainment

    def __call__(self, ctx: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        said: Mapping[str, Mapping[Any, float]] = ctx.aggregated_metrics or {}
        running, waiting, attained = (tuple(said.get(name, {}).values()) for name in (RUNNING, WAITING, ATTAINED))
        if not running:
            return ctx.target_num_replicas, {}
        needed = (sum(running) + sum(waiting)) / ctx.config.get_target_ongoing_requests()
        missed = bool(attained) and sum(attained) / len(attained) < self._attainment
        if missed or sum(waiting) >= 1:
            return max(needed, ctx.current_num_replicas + 1), {}
        return needed, {}

"""Reads the status of a server: readiness, models, and the figures on its metrics port."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass, field

from covey_client import running
from covey_client import secret as secrets
from covey_client.address import Address
from covey_client.asking import ask
from covey_client.errors import ConnectionLost, ServerError

PREFIX = "covey_"
INFO = "covey_target_info"
KEY = (  # the figures to look at first
    "covey_requests_running",
    "covey_requests_waiting",
    "covey_requests_total",
    "covey_requests_total{outcome=error}",
    "covey_requests_total{outcome=refused}",
    "covey_prompt_tokens_total",
    "covey_prefix_cache_hit_tokens_total",
    "covey_generation_tokens_total",
    "covey_time_to_first_token_seconds_mean",
    "covey_time_per_output_token_seconds_mean",
    "covey_request_queue_seconds_mean",
    "covey_request_seconds_mean",
    "covey_kv_blocks{state=free}",
    "covey_kv_blocks{state=used}",
    "covey_preemptions_total",
    "covey_rounds_total",
    "covey_spec_decode_num_draft_tokens_total",
    "covey_spec_decode_num_accepted_tokens_total",
    "covey_drafter_failures_total",
    "covey_set_aside_total",
)
ALL = "+Inf"  # the last bucket of counters that are a histogram
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", re.MULTILINE)
_OWN_LABELS = ("model", "version")
_LABEL = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Sample:
    """A number of the metrics port."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True)
class ModelStatus:
    """A model of the repository; state "" means that it was never loaded."""

    name: str
    state: str
    reason: str = ""


@dataclass(frozen=True)
class Status:
    """The status of a server at one time."""

    ready: bool
    models: tuple[ModelStatus, ...] | None  # None: this server lists its models only with its admin secret
    samples: tuple[Sample, ...] = field(default=())

    @property
    def served(self) -> Mapping[str, str]:
        """Return the labels of `covey_target_info`, which say what is served; empty if the metrics do not have it."""
        return next((sample.labels for sample in self.samples if sample.name == INFO), {})

    @property
    def emulated(self) -> bool:
        """Return whether an emulated device answers: texts and timings are then no model's."""
        return self.served.get("device") == "emulated"


def read(http_url: str, metrics_url: str = "", *, secret: str = "", seconds: float = 5.0) -> Status:
    """Read a server's status. Raises ConnectionLost if the HTTP port does not answer; metrics may be missing.
    `secret` is by default COVEY_ADMIN_SECRET's, or the one that a server of this user and machine keeps."""
    address = Address.parse(http_url, port=8000)
    secret = secret or secrets.found(address)
    server = running.server_at(address)
    metrics = Address.parse(metrics_url or address.host, port=8002 if server is None else server.metrics)
    ready, _ = ask(address, "GET", "/v2/health/ready", headers={}, seconds=seconds)
    headers = {secrets.HEADER: secret} if secret else {}
    code, body = ask(address, "POST", "/v2/repository/index", headers=headers, seconds=seconds)
    models = _models(address, body) if code == 200 else None
    try:
        code, body = ask(metrics, "GET", "/metrics", headers={}, seconds=seconds)
    except ConnectionLost:
        code, body = 0, b""
    return Status(ready == 200, models, parse(body.decode(errors="replace")) if code == 200 else ())


def parse(text: str, prefix: str = PREFIX) -> tuple[Sample, ...]:
    """Return the samples in Prometheus' text format whose names start with `prefix`."""
    found = []
    for name, labels, value in _SAMPLE.findall(text):
        if name.startswith(prefix):
            with suppress(ValueError):  # another program's
                found.append(Sample(name, dict(_LABEL.findall(labels)), float(value)))
    return tuple(found)


def figures(samples: tuple[Sample, ...]) -> dict[str, float]:
    """Return one number for each metric and its labels; a histogram becomes its count and its mean. Triton's own model
    and version labels are left out, and so are metrics without a figure, such as `covey_target_info`."""
    found: dict[str, float] = {}
    sums: dict[str, float] = {}
    for sample in samples:
        if sample.name.endswith("_bucket") or sample.labels.get("at_most", ALL) != ALL or sample.name == INFO:
            continue
        labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()) if key not in _OWN_LABELS)
        suffix = f"{{{labels}}}" if labels else ""
        if sample.name.endswith("_sum"):
            counted = f"{sample.name.removesuffix('_sum')}_count{suffix}"
            sums[counted] = sums.get(counted, 0.0) + sample.value
        else:
            found[sample.name + suffix] = found.get(sample.name + suffix, 0.0) + sample.value
    for counted, total in sums.items():
        if found.get(counted):
            found[counted.replace("_count", "_mean", 1)] = total / found[counted]
    return dict(sorted(found.items()))


def key_figures(found: Mapping[str, float]) -> dict[str, float]:
    """Return those of `figures` that `KEY` names, in its order, summed over the labels that it leaves out. A total of
    nothing is 0; a mean of nothing is left out."""
    shown = {}
    for key in KEY:
        values = [value for name, value in found.items() if key in (name, name.partition("{")[0])]
        if values or key.partition("{")[0].endswith("_total"):
            shown[key] = sum(values)
    return shown


def _models(address: Address, body: bytes) -> tuple[ModelStatus, ...]:
    try:
        rows = json.loads(body)
        models = tuple(ModelStatus(row["name"], row.get("state", ""), row.get("reason", "")) for row in rows)
        if not all(isinstance(text, str) for model in models for text in astuple(model)):
            raise TypeError
        return models
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ServerError(f"{address.target} does not answer as Covey does: {body[:200]!r}") from None

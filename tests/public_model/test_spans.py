"""The phases of requests that end early."""

from __future__ import annotations

import secrets

import pytest

from covey.contracts.types import NO_FLOATS, NO_INTS, Finish, Progress
from covey.process import traces
from covey.public_model.spans import emit
from covey.text.streaming import Served
from tests.collector import collecting


@pytest.mark.parametrize(
    ("queued", "first", "phases"),
    [(None, None, ["queue"]), (0.5, None, ["queue", "prefill"]), (0.5, 0.75, ["queue", "prefill", "decode"])],
)
def test_a_request_has_the_phases_that_it_reached(
    monkeypatch: pytest.MonkeyPatch, queued: float | None, first: float | None, phases: list[str]
) -> None:
    trace = secrets.token_hex(16)
    last = Progress(1, NO_INTS, NO_FLOATS, Finish.ERROR, queued=queued)
    served = Served(Finish.ERROR, last, 5, 1, first, None, 1.0, name="r", trace=f"00-{trace}-{'1' * 16}-01")
    with collecting() as collector:
        for name, value in {**collector.environment, "OTEL_SERVICE_NAME": "my team"}.items():
            monkeypatch.setenv(name, value)
        made = traces.opened()
        assert made is not None
        emit(made, served)
        made.close()
        spans = collector.of(trace, 1 + len(phases))
    request = spans.pop("generate")
    assert request.failed
    assert (request.service, request.end - request.start) == ("my team", 1_000_000_000)
    assert request.attributes["gen_ai.response.finish_reasons"] == ["error"]
    ordered = sorted(spans.values(), key=lambda span: span.start)
    assert [span.name for span in ordered] == phases
    assert {span.parent for span in ordered} == {request.id}

"""The spans of a request that has ended, made from its figures. The round loop makes none.

generate   from arrival to the end, a child of the front's span
  queue    until the request first ran
  prefill  until its first token
  decode   until its last token
"""

from __future__ import annotations

import time

from covey.contracts.types import Finish
from covey.process.traces import Traces
from covey.text.streaming import Served

NANOSECONDS = 1e9


def emit(traces: Traces, served: Served) -> None:
    """Export the spans of a request that has just ended."""
    from opentelemetry.trace import StatusCode, set_span_in_context

    arrival = time.time_ns() - int(served.total * NANOSECONDS)

    def at(seconds: float) -> int:
        return arrival + int(seconds * NANOSECONDS)

    done = served.progress
    request = traces.tracer.start_span(
        "generate",
        traces.context(served.trace),
        start_time=arrival,
        attributes={
            "gen_ai.usage.input_tokens": served.num_input,
            "gen_ai.usage.cache_read.input_tokens": done.reused,
            "gen_ai.usage.output_tokens": served.num_output,
            "gen_ai.response.finish_reasons": [served.outcome],
            "covey.request": served.name,
            "covey.rounds": done.rounds,
            "covey.draft_tokens": done.drafted,
            "covey.accepted_draft_tokens": done.accepted,
            "covey.drafters": [name for name, _, _ in done.drafters],
        },
    )
    if served.finish is Finish.ERROR:
        request.set_status(StatusCode.ERROR)
    context = set_span_in_context(request)
    for name, begin, end in _phases(served):
        traces.tracer.start_span(name, context, start_time=at(begin)).end(at(end))
    request.end(at(served.total))


def _phases(served: Served) -> list[tuple[str, float, float]]:
    """Return the phases that the request reached, each with its begin and end in seconds from arrival."""
    queued, first, total = served.progress.queued, served.first_token, served.total
    if queued is None:
        return [("queue", 0.0, total)]
    if first is None:
        return [("queue", 0.0, queued), ("prefill", queued, total)]
    last = first + (served.per_token or 0.0) * max(0, served.num_output - 1)
    return [("queue", 0.0, queued), ("prefill", queued, first), ("decode", first, last)]

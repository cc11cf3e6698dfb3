"""The front's spans: one for each request, from its announcement until its last byte is sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from covey.front.failures import Gone, kind
from covey.process.log_about import only
from covey.process.traces import Traces
from covey_client.errors import CoveyClientError


class RequestSpans:
    """Makes the spans of requests. Does nothing without traces."""

    def __init__(self, traces: Traces | None) -> None:
        self._traces = traces

    @contextmanager
    def serving(self, name: str, parent: str) -> Iterator[None]:
        """Trace the block. `parent` is the caller's `traceparent`, or ""."""
        if self._traces is None:
            yield
            return
        from opentelemetry.trace import SpanKind

        with self._traces.tracer.start_as_current_span(
            name,
            self._traces.context(parent),
            kind=SpanKind.SERVER,
            attributes={"covey.request": only()},
            record_exception=False,  # its text may quote a prompt
            set_status_on_exception=False,
        ):
            try:
                yield
            except BaseException as error:
                self.failed(error)
                raise

    def failed(self, error: BaseException) -> None:
        """Mark the current span. A caller that errs or leaves is no error of this server."""
        if self._traces is None:
            return
        from opentelemetry.trace import StatusCode, get_current_span

        span = get_current_span()
        span.set_attribute("error.type", type(error).__name__)
        expected = isinstance(error, CoveyClientError) and kind(error).http < 500
        if isinstance(error, Exception) and not isinstance(error, Gone) and not expected:
            span.set_status(StatusCode.ERROR)

    def current(self) -> str:
        """Return the `traceparent` for the server; "" without traces."""
        return "" if self._traces is None else self._traces.current()

    def close(self) -> None:
        if self._traces is not None:
            self._traces.close()

"""OpenTelemetry traces of this process. OpenTelemetry's own variables configure all of it.

Without an endpoint in the environment nothing is imported. A thread of the SDK sends spans in batches. While no
collector answers, spans are dropped and requests go on.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.context import Context

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PARENT = "traceparent"  # W3C's name of the header, and of the parameter of a Triton request
SERVICE = "covey"  # unless OTEL_SERVICE_NAME says otherwise
CLOSE_SECONDS = 1.0  # for the last batch
log = logging.getLogger("covey.traces")


class Traces:
    """Owns the exporter of a process and makes its spans. Any thread may call."""

    def __init__(self) -> None:
        """Raises ImportError without the SDK, and ValueError for a variable with a bad value."""
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        named = Resource.create({"service.name": SERVICE}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=named, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._propagator = TraceContextTextMapPropagator()
        self.tracer = self._provider.get_tracer(SERVICE)

    def context(self, parent: str) -> Context:
        """Return the context of a `traceparent`. Without a valid one, the next span begins a trace."""
        from opentelemetry.context import Context

        return self._propagator.extract({PARENT: parent}, Context())

    def current(self) -> str:
        """Return the `traceparent` of the current span; "" outside spans."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        return carrier.get(PARENT, "")

    def close(self) -> None:
        """Send the last batch, for at most CLOSE_SECONDS."""
        closing = threading.Thread(target=self._provider.shutdown, name="last traces", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


def opened() -> Traces | None:
    """Return the traces of this process; None if no endpoint is set, or the SDK cannot be used."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        return None
    try:
        return Traces()
    except ImportError as error:
        log.warning("Cannot trace requests: %s; install it with pip install 'covey[traces]'", error)
    except ValueError as error:
        log.warning("Cannot trace requests: a variable of OpenTelemetry has a bad value: %s", error)
    return None

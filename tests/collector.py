"""A collector of OpenTelemetry's traces, over OTLP/HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.waiting import until


@dataclass(frozen=True)
class Span:
    """A span as the collector got it."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    start: int  # nanoseconds
    end: int
    failed: bool
    attributes: Mapping[str, Any]


class Collector:
    """Keeps the spans that processes send to `url`."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:
                body = handler.rfile.read(int(handler.headers["content-length"]))
                assert handler.path == "/v1/traces"
                self.spans += _spans(ExportTraceServiceRequest.FromString(body))
                handler.send_response(200)
                handler.end_headers()

            def log_message(handler, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which processes find it, and send at once."""
        url = f"http://127.0.0.1:{self._server.server_port}"
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def of(self, trace: str, count: int) -> dict[str, Span]:
        """Wait until a trace has `count` spans, and return them by name."""
        until(lambda: len(self._of(trace)) >= count)
        found = self._of(trace)
        assert len(found) == count == len({span.name for span in found}), found
        return {span.name: span for span in found}

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()

    def _of(self, trace: str) -> list[Span]:
        return [span for span in self.spans if span.trace == trace]


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()
    try:
        yield collector
    finally:
        collector.close()


def _spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for group in request.resource_spans:
        service = _attributes(group.resource.attributes)["service.name"]
        for scope in group.scope_spans:
            for span in scope.spans:
                yield Span(
                    service,
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    span.status.code == span.status.STATUS_CODE_ERROR,
                    _attributes(span.attributes),
                )


def _attributes(given: Any) -> dict[str, Any]:
    return {item.key: _value(item.value) for item in given}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)

"""Traces that are off, and traces that cannot be sent."""

from __future__ import annotations

import logging
import subprocess
import sys
import time

import pytest

from covey.process import traces
from tests.collector import Collector


def test_without_an_endpoint_nothing_is_imported() -> None:
    code = """
import sys
import covey.front.__main__, covey.public_model.build, covey.public_model.spans
from covey.front.spans import RequestSpans
from covey.process import traces
spans = RequestSpans(traces.opened())
with spans.serving("POST", "00-" + "1" * 32 + "-" + "1" * 16 + "-01"):
    assert spans.current() == ""
print(*(name for name in sys.modules if name.startswith("opentelemetry")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.strip()


def test_a_collector_that_is_away_delays_neither_a_span_nor_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Collector()
    for name, value in gone.environment.items():
        monkeypatch.setenv(name, value)
    gone.close()
    began, made = time.monotonic(), traces.opened()
    assert made is not None
    for _ in range(1000):
        made.tracer.start_span("generate", made.context("")).end()
    made.close()
    assert time.monotonic() - began < 10 * traces.CLOSE_SECONDS


def test_a_missing_exporter_and_a_bad_variable_are_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9/v1/traces")
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
        assert traces.opened() is None
    assert "pip install 'covey[traces]'" in caplog.text
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    assert traces.opened() is None
    assert "bad value" in caplog.text

"""OpenTelemetry's traces of requests to a real server, as a collector gets them."""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from covey.launcher import Server
from covey.launcher.front import Front
from covey_client.request import Request
from tests.collector import Collector, collecting
from tests.e2e.serving import served
from tests.fronts import call, fronting
from tests.waiting import until

pytestmark = pytest.mark.e2e

PROFILE = """
models = ["target", "covey", "draft_ngram"]
[target]
threads = 2
kv_memory_mb = 64
[speculation]
policy = "fixed:3"
drafters = ["draft_ngram"]
"""
PROMPT = "one two three four one two three four one two"
COMPLETIONS = "/v1/completions"
PHASES = ("queue", "prefill", "decode")


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Front, Collector]]:
    """A front and its server, both with a collector."""
    with pytest.MonkeyPatch.context() as patch, collecting() as collector:
        for name, value in collector.environment.items():
            patch.setenv(name, value)
        with served(PROFILE, tmp_path_factory.mktemp("traced")) as server, fronting(server) as front:
            yield front, collector


def drawn() -> tuple[str, str]:
    """Return the ids of a new trace and of the caller's span in it."""
    return secrets.token_hex(16), secrets.token_hex(8)


def test_a_request_is_one_trace_from_its_caller_to_its_last_token(traced: tuple[Front, Collector]) -> None:
    front, collector = traced
    trace, caller = drawn()
    body = {"model": "covey", "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    before = time.time_ns()
    status, _, headers = call(front, "POST", COMPLETIONS, body, traceparent=f"00-{trace}-{caller}-01")
    assert status == 200
    spans = collector.of(trace, 5)
    outer, request = spans[f"POST {COMPLETIONS}"], spans["generate"]
    assert (outer.parent, request.parent) == (caller, outer.id)
    assert {spans[name].parent for name in PHASES} == {request.id}
    assert {span.service for span in spans.values()} == {"covey"}
    assert not any(span.failed for span in spans.values())

    ordered = [spans[name] for name in PHASES]
    assert [span.end for span in ordered[:2]] == [span.start for span in ordered[1:]]
    assert before < outer.start < request.start == ordered[0].start
    assert ordered[2].end <= request.end
    assert request.end <= outer.end + 1_000_000_000, "the processes' clocks differ by far"

    found = dict(request.attributes)
    assert outer.attributes == {"covey.request": headers["x-request-id"]}
    assert found.pop("covey.request") == headers["x-request-id"]
    assert found.pop("gen_ai.usage.input_tokens") > 8
    assert found.pop("gen_ai.usage.output_tokens") == 24
    assert found.pop("gen_ai.response.finish_reasons") == ["length"]
    assert found.pop("covey.drafters") == ["draft_ngram"]
    rounds, drafted = found.pop("covey.rounds"), found.pop("covey.draft_tokens")
    accepted = found.pop("covey.accepted_draft_tokens")
    assert rounds + accepted >= 24
    assert drafted >= accepted >= 0 < drafted
    assert found == {"gen_ai.usage.cache_read.input_tokens": 0}


def test_a_trace_goes_on_from_grpc_through_the_front_or_past_it(traced: tuple[Front, Collector]) -> None:
    front, collector = traced
    for through in (True, False):
        trace, caller = drawn()
        parent = f"00-{trace}-{caller}-01"
        request = Request.build("A", {"max_tokens": 2}, stream=True)
        if not through:  # Triton passes parameters on to a model, and no headers
            request = Request(request.tensors, trace=parent)
        url = front.grpc_url if through else f"127.0.0.1:{front.options.grpc_port}"
        with grpc.insecure_channel(url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            metadata = [("traceparent", parent)] if through else []
            answers = list(stub.ModelStreamInfer(iter([request.to_grpc()]), metadata=metadata))
        assert not any(answer.error_message for answer in answers)
        spans = collector.of(trace, 4 + through)
        first = spans["inference.GRPCInferenceService/ModelStreamInfer" if through else "generate"]
        assert first.parent == caller


def test_what_a_caller_does_wrong_is_no_error_of_the_server_and_stays_private(traced: tuple[Front, Collector]) -> None:
    front, collector = traced
    trace, caller = drawn()
    body = {"model": "covey", "prompt": "a secret", "temperature": -1}
    status, _, _ = call(front, "POST", COMPLETIONS, body, traceparent=f"00-{trace}-{caller}-01")
    assert status == 400
    (span,) = collector.of(trace, 1).values()
    assert span.attributes["error.type"] == "InvalidRequest"
    assert not span.failed
    assert "secret" not in str(span)


def test_what_a_caller_does_not_want_sampled_is_not(traced: tuple[Front, Collector]) -> None:
    front, collector = traced
    (trace, caller), body = drawn(), {"model": "covey", "prompt": "A", "max_tokens": 2}
    assert call(front, "POST", COMPLETIONS, body, traceparent=f"00-{trace}-{caller}-00")[0] == 200
    seen = len(collector.spans)
    assert call(front, "POST", COMPLETIONS, body, traceparent="no parent")[0] == 200
    until(lambda: len(collector.spans) >= seen + 5)
    assert trace not in {span.trace for span in collector.spans}


def test_requests_go_on_without_their_collector(traced: tuple[Front, Collector]) -> None:
    """The last test: the collector ends."""
    front, collector = traced
    collector.close()
    body, began = {"model": "covey", "prompt": PROMPT, "max_tokens": 2}, time.monotonic()
    for _ in range(20):
        assert call(front, "POST", COMPLETIONS, body)[0] == 200
    assert time.monotonic() - began < 10.0


def test_an_answer_that_breaks_off_is_an_error_and_a_caller_who_leaves_is_none(
    canned_server: tuple[Server, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/v2/models/covey/generate_stream"
    with collecting() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        with fronting(canned_server[0]) as front:
            (broken, caller), (left, other) = drawn(), drawn()
            body = {"text_input": "late 5", "stream": True}
            call(front, "POST", path, body, traceparent=f"00-{broken}-{caller}-01")
            host, _, port = front.http_url.partition(":")
            with closing(http.client.HTTPConnection(host, int(port), timeout=30)) as leaving:
                body = {"text_input": "hang", "stream": True}
                leaving.request("POST", path, json.dumps(body), {"traceparent": f"00-{left}-{other}-01"})
                time.sleep(0.3)
            spans = [*collector.of(broken, 1).values(), *collector.of(left, 1).values()]
    assert [(span.attributes["error.type"], span.failed) for span in spans] == [("ServerError", True), ("Gone", False)]

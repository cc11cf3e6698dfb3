"""The front before a real tritonserver: what strangers can send, and what they get."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import queue
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from covey.contracts.profile import FrontSettings
from covey.front import failures, grpc_service, http_protocol, log
from covey.front.admission import LEAST_READS, READ_BURST_SECONDS
from covey.front.upstream import Upstream, _BoundedResumption
from covey.launcher import Server
from covey.launcher.errors import StartError
from covey.launcher.front import Front, with_ports
from covey.supervision import processes
from covey.supervision.deaths import Deaths
from covey_client import Client, CoveyClientError, InvalidRequest, Overloaded, ServerError
from covey_client.request import Request
from loadtest.attack.doors import Attack
from tests.fronts import Answering, call, fronting, over_grpc, over_http
from tests.over_http import Door
from tests.waiting import until

pytestmark = pytest.mark.e2e

PROFILE = """
models = ["covey", "covey_unary"]
[speculation]
drafters = []
[front]
connections = 40
requests = 20
rate = 1000.0
read_seconds = 2.0
"""
GENERATE = "/v2/models/covey/generate"
ONE = {"text_input": "count 1"}


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("profile") / "front.toml"
    path.write_text(PROFILE)
    return str(path)


@pytest.fixture(scope="module")
def front(canned_server: tuple[Server, Any], profile: str) -> Iterator[Front]:
    with fronting(canned_server[0], profile=profile) as made:
        yield made


def post(front: Front, path: str, body: Any) -> tuple[int, Any]:
    status, said, _ = call(front, "POST", path, body)
    return status, json.loads(said)


def refusal(front: Front, asked: Any = ONE, path: str = GENERATE) -> tuple[int, str]:
    """The status, and after how many seconds to ask again."""
    status, _, headers = call(front, "POST", path, asked)
    return status, headers["retry-after"]


def connected(front: Front, source: str = "127.0.0.1") -> socket.socket:
    host, _, port = front.http_url.partition(":")
    return socket.create_connection((host, int(port)), 10.0, (source, 0))


def raw(front: Front, data: bytes, wanted: bytes = b"") -> bytes:
    """What comes back on a connection of its own, until something wanted is in it."""
    with connected(front) as connection:
        with suppress(OSError):  # it was refused before all of it was sent
            connection.sendall(data)
        came = b""
        try:
            while some := connection.recv(4096):
                came += some
                if wanted in came:
                    break
        except OSError as error:
            return came or repr(error).encode()
        return came


def inputs(kind: Any, text: str, **arrays: Any) -> list[Any]:
    found = []
    for name, array in {"text_input": np.array([text.encode()], np.object_), **arrays}.items():
        found.append(kind.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        found[-1].set_data_from_numpy(array)
    return found


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_both_protocols_find_the_same_server(front: Front, protocol: str) -> None:
    with closing(Client(front.grpc_url) if protocol == "grpc" else Door(front.http_url)) as client:
        assert [chunk.text for chunk in client.stream("count 3")] == ["w0 ", "w1 ", "w2 "]
        assert client.generate("count 2").tokens == (0, 1)
        given = json.loads(client.generate("settings", max_tokens=3, stop_words=["ü"], temperature=0.5, seed=9).text)
        assert given.pop("stream") is False
        assert given == {
            "text_input": "settings",
            "max_tokens": 3,
            "stop_words": ["ü"],
            "temperature": 0.5,
            "seed": 9,
            "tenant": "address 127.0.0.1",
        }
        with pytest.raises(InvalidRequest) as caught:
            client.generate("count 1", top_p=7.0)
        assert caught.value.field == "top_p"
        with pytest.raises(Overloaded) as busy:
            client.generate("error [UNAVAILABLE] queue full; try again in 3 s")
        assert busy.value.retry_after == 3
        parts = client.stream("late 3")
        assert (next(parts).text, next(parts).text) == ("w0 ", "w1 ")
        with pytest.raises(CoveyClientError, match="the target failed"):
            next(parts)


def test_tritonclient_over_http(front: Front) -> None:
    client = tritonclient.http.InferenceServerClient(front.http_url)
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("covey")
    assert client.get_server_metadata()["name"] == "covey"
    assert len(client.get_model_metadata("covey")["inputs"]) > 20
    assert client.get_model_config("covey")["model_transaction_policy"] == {"decoupled": True}
    typed = {"max_tokens": np.array([3], np.int32), "temperature": np.array([0.5], np.float32)}
    typed |= {"return_log_probs": np.array([True]), "bad_words": np.array([b"x", b"yy"], np.object_)}
    plain = inputs(tritonclient.http, "settings", **typed)
    for each, array in zip(plain[1:], typed.values()):
        each.set_data_from_numpy(array, binary_data=False)
    for given in (plain, inputs(tritonclient.http, "settings", **typed)):
        said = json.loads(client.infer("covey_unary", given).as_numpy("text_output")[0])
        assert {name: np.array(said[name]).reshape(-1).tolist() for name in typed} == {
            **{"max_tokens": [3], "temperature": [0.5], "return_log_probs": [True], "bad_words": ["x", "yy"]}
        }
    found = client.infer("covey_unary", inputs(tritonclient.http, "count 2"), request_id="7")
    assert found.as_numpy("output_ids").tolist() == [0, 1]
    assert found.as_numpy("text_output").tolist() == [b"w0 w1 "]
    assert found.get_response()["id"] == "7"
    wanted = [tritonclient.http.InferRequestedOutput("output_ids", binary_data=False)]
    found = client.infer("covey_unary", inputs(tritonclient.http, "count 1"), outputs=wanted)
    assert [output["name"] for output in found.get_response()["outputs"]] == ["output_ids"]
    for act in (lambda: client.load_model("covey"), client.get_system_shared_memory_status, client.get_log_settings):
        with pytest.raises(InferenceServerException, match="only on Triton's own ports"):
            act()
    client.close()


def test_tritonclient_over_grpc(front: Front) -> None:
    client = tritonclient.grpc.InferenceServerClient(front.grpc_url)
    assert client.is_server_ready()
    assert client.is_model_ready("covey_unary")
    assert client.get_model_config("covey").config.model_transaction_policy.decoupled
    assert len(client.get_model_metadata("covey").inputs) > 20
    assert client.infer("covey_unary", inputs(tritonclient.grpc, "count 2")).as_numpy("output_ids").tolist() == [0, 1]
    for act in (lambda: client.load_model("covey"), client.get_trace_settings, client.get_inference_statistics):
        with pytest.raises(InferenceServerException, match="only on Triton's own ports") as caught:
            act()
        assert "UNIMPLEMENTED" in str(caught.value.status())
    with pytest.raises(InferenceServerException, match="covey_unary for infer"):
        client.infer("covey", inputs(tritonclient.grpc, "count 2"))
    with pytest.raises(InferenceServerException, match="allowed: covey, covey_unary"):
        client.infer("doomed", inputs(tritonclient.grpc, "count 2"))
    came: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: came.put((result, error)))
    client.async_stream_infer("covey", inputs(tritonclient.grpc, "count 1"), request_id="a")
    result, error = came.get(timeout=20)
    assert error is None
    assert result.get_response().id == "a"
    assert result.get_response().parameters["triton_final_response"].bool_param
    wrong = inputs(tritonclient.grpc, "count 1", max_tokens=np.array([-1], np.int32))
    client.async_stream_infer("covey", wrong)
    assert "max_tokens: got -1" in str(came.get(timeout=20)[1])
    client.async_stream_infer("covey", inputs(tritonclient.grpc, "count 1"))
    assert came.get(timeout=20)[1] is None, "one wrong request ends no stream"
    client.stop_stream()
    client.close()


def test_statuses(front: Front) -> None:
    for path in ("/v2/repository/index", "/v2/models/doomed/generate", "/v2/models/covey/versions/2/generate", "/x"):
        assert post(front, path, {"text_input": "count 1"})[0] == 404, path
    assert call(front, "GET", GENERATE)[0] == 405
    status, said = post(front, GENERATE, {"text_input": "a", "max_tokens": -1})
    assert (status, said["error"]) == (400, "[INVALID_ARG] max_tokens: got -1, allowed: 0 to 1073741824")
    assert post(front, GENERATE, {"text_input": "a", "stream": True})[0] == 400
    busy = {"text_input": "error [UNAVAILABLE] queue full; try again in 3 s"}
    for path in (GENERATE, f"{GENERATE}_stream"):  # before its first event a stream has a status
        assert refusal(front, busy, path) == (503, "3")
    assert call(front, "POST", GENERATE, b"", **{"Content-Encoding": "gzip"})[0] == 415
    status, said, _ = call(front, "GET", "/metrics")
    assert status == 200
    assert b"nv_inference_request_success" in said
    found = post(front, GENERATE, ONE)[1]
    assert (found["output_ids"], found["drafters"]) == ([0], [])


def test_each_body_may_have_many_chunks_that_are_large(front: Front) -> None:
    host, _, port = front.http_url.partition(":")
    size, count = http_protocol.CHUNK_BYTES, 2 * http_protocol.FREE_CHUNKS
    body = b'{"text_input": "count 1"}'.ljust(size * count)
    large = (body[at : at + size] for at in range(0, len(body), size))
    with closing(http.client.HTTPConnection(host, int(port), timeout=30)) as connection:
        for chunks in (large, (bytes([each]) for each in body[:60])):
            connection.request("POST", GENERATE, chunks, encode_chunked=True)
            answer = connection.getresponse()
            assert json.loads(answer.read())["output_ids"] == [0]
        connection.request("POST", GENERATE, (b" " for _ in range(80)), encode_chunked=True)  # counted anew
        answer = connection.getresponse()
        assert answer.status == 413
        assert b"a body of 65 chunks in 65 bytes, allowed: at most 64, and one for every 512 bytes" in answer.read()


def test_bodies_in_tiny_chunks_hinder_nobody(front: Front) -> None:
    head = f"POST {GENERATE} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            assert b" 413 " in raw(front, head + 5_000 * b"1\r\n \r\n") or over.is_set()

    def median_seconds() -> float:
        taken = []
        for _ in range(15):
            began = time.monotonic()
            assert post(front, GENERATE, ONE)[0] == 200
            taken.append(time.monotonic() - began)
        return sorted(taken)[7]

    alone = median_seconds()
    with ThreadPoolExecutor(8) as senders:
        floods = [senders.submit(flood) for _ in range(8)]
        beside = median_seconds()
        over.set()
        for each in floods:
            each.result()
    assert beside < 10 * alone + 0.1


def test_who_asks_through_a_trusted_proxy_is_a_caller_of_its_own(
    canned_server: tuple[Server, Any], tmp_path: Path
) -> None:
    """Each has a rate, and is a tenant, by its address; no other peer is believed."""
    profile = tmp_path / "behind.toml"
    profile.write_text(PROFILE.replace("rate = 1000.0", 'rate = 0.01\nmessage_bytes = 1024\nproxies = ["127.0.0.1"]'))
    body = json.dumps({"text_input": "settings"}).encode()
    with fronting(canned_server[0], profile=str(profile)) as front:

        def asked(client: str) -> Any:
            status, said, _ = call(front, "POST", GENERATE, body, **{"X-Forwarded-For": client})
            return json.loads(json.loads(said)["text_output"])["tenant"] if status == 200 else status

        for client in ("8.8.8.8", "1.1.1.1, 8.8.4.4"):
            assert asked(client) == f"address {client.split()[-1]}"
            assert asked(client) == 429
        request = service_pb2.ModelInferRequest(model_name="covey_unary")
        request.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"count 1")
        with grpc.insecure_channel(front.grpc_url) as channel:
            infer = channel.unary_unary(f"/{grpc_service.SERVICE}/ModelInfer")
            for client, code in (
                ("8.8.8.8", grpc.StatusCode.RESOURCE_EXHAUSTED),
                ("9.9.9.9", grpc.StatusCode.OK),
            ):
                metadata = (("x-forwarded-for", client),)
                assert infer.future(request.SerializeToString(), metadata=metadata, timeout=30).code() is code
        with connected(front, "127.0.0.2") as peer:
            peer.sendall(JSON_HEAD + b"X-Forwarded-For: 7.7.7.7\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
            said = b""
            while b"address" not in said and (part := peer.recv(4096)):  # head and body may come one after the other
                said += part
            assert b"address 127.0.0.2" in said


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("prompt", ["slow 400", "hang"])
def test_a_caller_that_leaves_cancels(
    front: Front, canned_server: tuple[Server, Any], protocol: Any, prompt: str
) -> None:
    tenant = f"{protocol}-{prompt.split()[0]}"
    if protocol == "grpc":
        with Client(front.grpc_url) as client:
            stream = client.stream(prompt, tenant=tenant)
            if prompt != "hang":
                next(stream)
            time.sleep(0.3)
    else:
        body = json.dumps({"text_input": prompt, "stream": True, "tenant": tenant}).encode()
        with connected(front) as connection:
            head = f"POST {GENERATE}_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            if prompt != "hang":
                assert connection.recv(100)
            time.sleep(0.3)
    until((canned_server[1].marks / tenant).exists, seconds=4.0)


JSON_HEAD = f"POST {GENERATE} HTTP/1.1\r\nHost: x\r\n".encode()
ATTACKS: dict[str, tuple[bytes, bytes]] = {
    "600,000 chunks": (JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 600_000, b" 413 "),
    "chunks without end": (
        JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + (b"8000\r\n" + b"[" * 0x8000 + b"\r\n") * 80,
        b" 413 ",
    ),
    "half of the chunks": (JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b" 408 "),
    "a coding that nobody reads": (JSON_HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n", b" 501 "),
    "chunks and a length": (JSON_HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n{}", b" 400 "),
    "endless header": (b"GET /v2 HTTP/1.1\r\nA: " + b"x" * 10_000_000, b" 431 "),
    "endless headers": (b"GET /v2 HTTP/1.1\r\n" + b"a:b\r\n" * 1_000_000, b" 431 "),
    "many headers": (b"GET /v2 HTTP/1.1\r\nHost: x\r\n" + b"a:b\r\n" * 1000 + b"\r\n", b" 431 "),
    "a long header": (b"GET /v2 HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 17_000 + b"\r\n\r\n", b" 431 "),
    "a long address": (b"GET /v2?" + b"x" * 17_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b" 431 "),
    "many trailers": (
        JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"a:b\r\n" * 1000 + b"\r\n",
        b" 431 ",
    ),
    "5 MB of [": (JSON_HEAD + b"Content-Length: 5000000\r\n\r\n" + b"[" * 5_000_000, b" 413 "),
    "1 MB of [": (JSON_HEAD + b"Content-Length: 1000000\r\n\r\n" + b"[" * 1_000_000, b" 400 "),
    "64 MB": (JSON_HEAD + b"Content-Length: 67108864\r\n\r\n" + bytes(67108864), b" 413 "),
    "no HTTP": (b"x%s\n\n%s" % (random.Random(1).randbytes(1000), random.Random(2).randbytes(99_000)), b" 400 "),
    "no end": (b"x" + random.Random(3).randbytes(100_000).replace(b"\n", b""), b" 431 "),
    "two lengths": (JSON_HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", b" 400 "),
    "a huge length": (JSON_HEAD + b"Content-Length: 99999999999999999999\r\n\r\n", b" 413 "),
    "half a body": (JSON_HEAD + b"Content-Length: 100\r\n\r\n{", b" 408 "),
    "half a head": (b"POST /v2/mod", b" 408 "),
    "half a body behind a request": (
        JSON_HEAD + b"Content-Length: 2\r\n\r\n{}" + JSON_HEAD + b"Content-Length: 9\r\n\r\n{",
        b" 408 ",
    ),
}


def test_raw_bytes_are_refused_and_nobody_notices(front: Front) -> None:
    pid = front.pid
    with Client(front.grpc_url) as client, ThreadPoolExecutor(4) as pool:
        beside = client.stream("slow 60")
        next(beside)
        answers = dict(zip(ATTACKS, pool.map(lambda attack: raw(front, *attack), ATTACKS.values())))
        assert not {name: said for name, said in answers.items() if ATTACKS[name][1] not in said}
        assert len(list(beside)) == 59
    front.check()
    assert front.pid == pid
    assert post(front, GENERATE, ONE)[0] == 200


def test_grpc_messages_that_are_none(front: Front) -> None:
    path = f"/{grpc_service.SERVICE}/"
    with grpc.insecure_channel(front.grpc_url) as channel:
        stream = channel.stream_stream(
            f"{path}ModelStreamInfer", response_deserializer=service_pb2.ModelStreamInferResponse.FromString
        )
        messages = [b"\xff\xff", b"\x0a\x05cov\xff\xff", b"\x0a\x05covey" + b"\x2a\x00" * 500_000, b""]
        answers = list(stream(iter(messages), timeout=30))
        assert len(answers) == len(messages)
        assert all("INVALID_ARG" in answer.error_message for answer in answers), answers
        assert stream(iter([bytes(64 << 20)]), timeout=30).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        infer = channel.unary_unary(f"{path}ModelInfer")
        assert infer.future(b"\xff\xff\xff", timeout=30).code() is grpc.StatusCode.INVALID_ARGUMENT
        long = (("a", "x" * 100_000),)
        assert infer.future(b"", timeout=30, metadata=long).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert post(front, GENERATE, ONE)[0] == 200


def test_slow_senders_hold_no_places_and_go_first_where_there_is_no_room(front: Front) -> None:
    """Half-sent bodies from as many addresses as fill all connections, beside callers from one more."""

    def half_sent(address: str) -> socket.socket:
        made = connected(front, address)
        made.sendall(JSON_HEAD + b"Content-Length: 10\r\n\r\n{")
        return made

    held = [half_sent(f"127.0.0.{10 + place % 3}") for place in range(54)]  # 40 connections, 20 places
    time.sleep(0.3)
    for _ in range(10):
        assert post(front, GENERATE, ONE)[0] == 200
    held += [half_sent("127.0.0.1") for _ in range(30)]  # the caller's own address
    for _ in range(5):
        assert post(front, GENERATE, ONE)[0] == 200
    answers = set()
    for connection in held:
        with suppress(ConnectionResetError):  # one that was not let in had sent what nobody reads
            answers.add(connection.recv(100)[9:12])
        connection.close()
    assert answers == {b"408", b"429"}


def test_grpc_calls_without_a_message_go_first_where_there_is_no_room(front: Front) -> None:
    """Forty of them, of every kind, are all that the server has at once."""
    path, held = f"/{grpc_service.SERVICE}/", []
    with grpc.insecure_channel(front.grpc_url) as channel, Client(front.grpc_url) as client:
        silence: queue.Queue[bytes] = queue.Queue()
        for place in range(60):
            method = ("ModelInfer", "ModelStreamInfer", "NoSuchMethod")[place % 3]
            held.append(channel.stream_stream(f"{path}{method}")(iter(silence.get, None), timeout=60))
        time.sleep(0.5)
        for _ in range(5):
            assert client.generate("count 1").tokens == (0,)
        code = grpc.StatusCode
        codes = {held[place].code() for place in (0, 2)}
        assert codes <= {code.RESOURCE_EXHAUSTED, code.DEADLINE_EXCEEDED, code.UNIMPLEMENTED}
        for place in range(0, 60, 3):
            assert held[place].code() is not None, "who sends nothing is not waited for"
        for one in held:
            one.cancel()
        for _ in held:
            silence.put(None)  # type: ignore[arg-type]


def test_silent_grpc_connections_do_not_stay(front: Front) -> None:
    host, _, port = front.grpc_url.partition(":")
    held = [socket.create_connection((host, int(port)), timeout=20) for _ in range(200)]  # 160 are let in
    with suppress(OSError):
        while held[0].recv(100):  # ours are the server's settings
            pass
    refused = 0
    for connection in held:
        connection.setblocking(False)
        with suppress(OSError):
            refused += connection.recv(100) == b""
        connection.close()
    assert refused
    with Client(front.grpc_url) as client:
        assert client.generate("count 1").tokens == (0,)


def test_an_error_that_nobody_foresaw_says_nothing_of_a_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    log.to_stderr()
    for _ in range(100):
        with pytest.raises(UnicodeEncodeError) as caught:
            "a secret\ud800".encode()
        assert "secret" not in failures.text(failures.public("a test", caught.value))
    logging.getLogger().handlers.clear()
    said = capsys.readouterr().err
    assert "secret" not in said
    assert "a test failed\nUnicodeEncodeError at" in said
    assert said.count("failed") == 20


async def test_who_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the route: a response of a megabyte that nobody takes."""
    monkeypatch.setattr(http_protocol, "SLOW_READER_SECONDS", 0.2)

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(100):
            await send({"type": "http.response.body", "body": bytes(1 << 17), "more_body": True})

    async with over_http(app, FrontSettings()) as (address, made):
        _, writer = await asyncio.open_connection(*address, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        while not (made and made[0].transport.is_closing()):
            await asyncio.sleep(0.02)
        assert not made[0].tasks or await asyncio.wait(made[0].tasks, timeout=5)
        writer.close()


async def test_a_flood_of_what_costs_nothing_waits_for_its_turns_and_others_do_not() -> None:
    app = Answering()
    asked = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    async with over_http(app, FrontSettings(rate=10.0)) as (address, _):
        reader, flood = await asyncio.open_connection(*address)
        flood.write(asked * 500)
        await reader.readuntil(b"\r\n\r\n")
        own, other = await asyncio.open_connection(*address, local_addr=("127.0.0.2", 0))
        other.write(asked)
        await own.readuntil(b"\r\n\r\n")
        assert app.clients.count("127.0.0.1") < 500
        for _ in range(149):  # and goes on
            await reader.readuntil(b"\r\n\r\n")
        for writer in (flood, other):
            writer.close()


async def test_requests_that_wait_for_their_turns_make_room_for_others_and_leave_with_their_senders() -> None:
    """Two addresses have taken all places, and their turns come in 20 s."""
    app, asked = Answering(), b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    began = time.monotonic()
    async with over_http(app, FrontSettings(rate=10.0, connections=20)) as (where, made):

        async def ask(source: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(*where, local_addr=(source, 0))
            writer.write(asked)
            return reader, writer

        held = [await ask("127.0.0.3")]
        await held[0][0].readuntil(b"\r\n\r\n")
        for source in ("127.0.0.1", "127.0.0.2"):
            for _ in range(2000):
                made[0].admission.charge_read(source)
        held += [await ask(f"127.0.0.{1 + place % 2}") for place in range(20)]
        for _ in range(5):
            held.append(await ask("127.0.0.3"))
            assert (await held[-1][0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        cut = [await each[0].read(12) for each in held[2:7]]
        assert cut == [b"HTTP/1.1 429"] * 5
        for _, writer in held:
            writer.close()
        while made[0].tasks:
            await asyncio.sleep(0.02)
        assert app.clients == ["127.0.0.3"] * 6
    assert time.monotonic() - began < 15, "who has gone waits no longer"


REFUSED = service_pb2.ModelInferRequest(model_name="no such model").SerializeToString()


@pytest.mark.parametrize("method", ["ModelStreamInfer", "ModelInfer"])
async def test_messages_over_grpc_that_are_refused_wait_for_their_turns(method: str) -> None:
    count, path = int(2 * LEAST_READS), f"/{grpc_service.SERVICE}/{method}"
    async with over_grpc(FrontSettings(rate=10.0)) as (address, _), grpc.aio.insecure_channel(address) as channel:
        began = time.monotonic()
        if method == "ModelStreamInfer":
            call = channel.stream_stream(path)(REFUSED for _ in range(count))
            assert sum([1 async for _ in call]) == count
        else:
            asked = [channel.unary_unary(path)(REFUSED) for _ in range(count)]
            assert all([await each.code() is not grpc.StatusCode.OK for each in asked])
        took = time.monotonic() - began
    # All but those of a first second, however fast the machine is.
    assert took > 0.9 * (count - LEAST_READS * READ_BURST_SECONDS) / LEAST_READS


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


async def test_of_thousands_of_calls_none_of_another_address_is_dropped() -> None:
    path = f"/{grpc_service.SERVICE}/"
    fields = {":method": "POST", ":scheme": "http", ":path": f"{path}ModelStreamInfer", ":authority": "front"}
    fields |= {"content-type": "application/grpc", "te": "trailers"}
    head = b"".join(b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in field) for field in fields.items())
    calls = b"".join(frame(1, 4, 2 * number + 1, head) for number in range(200))
    opened = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + calls

    def ask(address: str) -> list[grpc.StatusCode]:
        with grpc.insecure_channel(address) as channel:
            call = channel.unary_unary(f"{path}ServerLive")
            return [each.code() for each in [call.future(b"", timeout=60) for _ in range(200)]]

    async with over_grpc(FrontSettings()) as (address, _):
        with ExitStack() as held:
            for _ in range(25):  # meanwhile this loop takes none of them
                port = int(address.rpartition(":")[2])
                connection = socket.create_connection(("127.0.0.1", port), 10, ("127.0.0.2", 0))
                held.enter_context(connection).sendall(opened)
            found = await asyncio.to_thread(ask, address)
    assert set(found) == {grpc.StatusCode.OK}


def test_one_address_has_half_of_the_requests(front: Front) -> None:
    with Client(front.grpc_url) as client:
        streams = [client.stream("slow 60") for _ in range(10)]
        for stream in streams:
            next(stream)
        assert refusal(front) == (429, "1")
        streams[0].close()
        until(lambda: post(front, GENERATE, ONE)[0] == 200)
        for stream in streams:
            stream.close()


def test_streams_outlive_tritonserver(canned_folder: Callable[[], Any], profile: str) -> None:
    """On both protocols, and a caller that comes meanwhile is told when to come again."""
    canned = canned_folder()
    with canned.server("covey", drain_seconds=0.0) as server, fronting(server, profile=profile) as front:
        came: dict[str, list[str]] = {"grpc": [], "http": []}

        def read(protocol: str) -> None:
            with closing(Client(front.grpc_url) if protocol == "grpc" else Door(front.http_url)) as client:
                came[protocol].extend(chunk.text for chunk in client.stream("slow 30"))

        threads = [threading.Thread(target=read, args=(protocol,)) for protocol in came]
        for thread in threads:
            thread.start()
        until(lambda: all(len(found) > 4 for found in came.values()))
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not server.running)
        until(lambda: call(front, "GET", "/v2/health/ready")[0] == 503)
        assert refusal(front) == (503, "2")
        server.kill()
        assert _told_to_a_stranger(server) == {"ModelReady"}, "no prompt"
        assert call(front, "GET", "/v2/health/ready")[0] == 503
        looks: list[None] = []
        server.start(lambda: looks.append(front.check()))
        assert looks, "a front that dies meanwhile would be started again"
        for thread in threads:
            thread.join(60)
        assert {protocol: "".join(found) for protocol, found in came.items()} == dict.fromkeys(
            came, "".join(f"w{index} " for index in range(30))
        )
        assert call(front, "GET", "/v2/health/ready")[0] == 200
        _drain(server, front)


def test_streams_outlive_the_model_and_its_killer_does_not_kill_for_ever(
    canned_folder: Callable[[], Any], profile: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Triton leaves the streams of a process that died open. Whoever asked for the death is not asked for for ever."""
    with (
        canned_folder().server("covey", drain_seconds=0.0) as server,
        fronting(server, profile=profile) as front,
        Client(front.grpc_url, timeout=90) as client,
    ):
        came: list[str] = []
        thread = threading.Thread(target=lambda: came.extend(chunk.text for chunk in client.stream("slow 60")))
        thread.start()
        until(lambda: bool(processes.by_model(server.pid).get("covey")))
        time.sleep(1)
        with pytest.raises(ServerError, match="died repeatedly while it served this request"):
            client.generate("die")
        thread.join(60)
        assert "".join(came) == "".join(f"w{index} " for index in range(60))
        assert 1 <= caplog.messages.count("reloading covey") <= 2, "one request may kill it twice"


def _told_to_a_stranger(server: Server) -> set[str]:
    """What whoever takes the port of a dead server is asked within two seconds."""
    asked: set[str] = set()

    class Stranger(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            asked.add(details.method.rpartition("/")[2])
            ready = service_pb2.ModelReadyResponse(ready=True).SerializeToString()
            return grpc.unary_unary_rpc_method_handler(lambda _message, _context: ready)

    stranger = grpc.server(ThreadPoolExecutor(4), handlers=(Stranger(),), options=[("grpc.so_reuseport", 0)])
    stranger.add_insecure_port(server.grpc_url)
    stranger.start()
    time.sleep(2)
    stranger.stop(0).wait()
    return asked


def _drain(server: Server, front: Front) -> None:
    """What is in flight ends, what comes is refused with a time, and what the server cuts gets an error."""
    with Client(front.grpc_url) as client:
        stream = client.stream("slow 10")
        cut = client.stream("slow 400")
        next(stream)
        next(cut)
        front.drain()
        until(lambda: call(front, "GET", "/v2/health/ready")[0] == 503)
        assert refusal(front) == (503, "5")
        assert len(list(stream)) == 9
        server.kill()
        with pytest.raises(Overloaded, match="was stopped before the answer ended: ask again later"):
            list(cut)


async def test_while_a_front_drains_an_answer_whose_model_dies_is_not_asked_for_again() -> None:
    deaths = Deaths()
    upstream = Upstream("localhost:1", "localhost:2", deaths.fd, lambda: True)
    resumption = _BoundedResumption(lambda _settings: Request({}), {}, upstream)
    assert resumption.rest(ServerError("Stub process is not healthy.")) is None
    await upstream.close()


def test_a_front_that_drains_lets_go_of_the_server_when_its_last_answer_has_ended(
    canned_server: tuple[Server, Any], profile: str
) -> None:
    """Else the launcher could not tell whether somebody still reads an answer."""
    server = canned_server[0]

    def connected() -> bool:
        ends = psutil.Process(front.pid).net_connections("tcp")
        return any(end.raddr and end.raddr.port == server.options.grpc_port for end in ends)

    with fronting(server, profile=profile) as front, Client(front.grpc_url) as client:
        stream = client.stream("slow 20")
        next(stream)
        front.drain()
        until(lambda: call(front, "GET", "/v2/health/ready")[0] == 503)
        assert connected()
        assert len(list(stream)) == 19
        until(lambda: not connected())
        assert refusal(front)[0] == 503
        assert call(front, "GET", "/metrics")[0] == 200


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
def test_a_front_that_dies_or_does_not_answer_is_started_again(
    canned_server: tuple[Server, Any], profile: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("covey.launcher.front.SILENT_SECONDS", 1.0)
    with fronting(canned_server[0], profile=profile) as front:
        first = front.pid
        assert b"COVEY_ADMIN" not in Path(f"/proc/{first}/environ").read_bytes()
        time.sleep(0.6)  # it has answered the launcher once
        os.kill(first, number)

        def back() -> bool:
            front.check()
            try:
                return front.pid != first and call(front, "GET", "/v2/health/ready")[0] == 200
            except OSError:
                return False

        until(back)
        with pytest.raises(StartError, match="not free"):
            with_ports(front.options)
    with_ports(front.options)


def test_a_stop_answers_requests_that_have_not_arrived_and_says_nothing_of_them(
    canned_server: tuple[Server, Any], profile: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with fronting(canned_server[0], profile=profile) as front, ExitStack() as opened:
        half = [opened.enter_context(connected(front)) for _ in range(12)]
        for each in half:
            each.sendall(JSON_HEAD + b"content-length: 100\r\n\r\n{")
        whole = opened.enter_context(connected(front))
        body = b'{"text_input": "hang", "stream": true}'
        whole.sendall(f"POST {GENERATE}_stream HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        time.sleep(0.5)
        front.stop()
        assert capfd.readouterr().err.count("Exception in ASGI") == 0
        assert {each.recv(12) for each in half} == {b"HTTP/1.1 503"}


def test_requests_that_no_client_would_send_get_documented_answers(front: Front) -> None:
    """A slice of `python -m loadtest.attack fuzz`."""
    attack, pid = Attack(front.http_url, front.grpc_url), front.pid
    with Client(front.grpc_url) as client:
        beside = client.stream("slow 40")
        next(beside)
        attack.run(1500, seed=7)
        assert len(list(beside)) == 39
    assert attack.requests >= 1500
    assert not attack.wrong
    front.check()
    assert front.pid == pid

"""Sends the requests of `messages` over HTTP, as events and over gRPC, and checks answers by the documentation."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import grpc  # type: ignore[import-untyped]
from tritonclient.grpc import service_pb2

from loadtest.attack.messages import Messages

STATUSES = {200, 400, 404, 405, 408, 413, 415, 429, 431, 501, 503, 504}
Code = grpc.StatusCode
CODES = {
    *(Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.RESOURCE_EXHAUSTED, Code.UNIMPLEMENTED, Code.UNAVAILABLE),
    Code.DEADLINE_EXCEEDED,
}
PREFIXES = ("[INVALID_ARG] ", "[UNAVAILABLE] ", "[CANCELLED] ", "[INTERNAL] ")
SERVICE = "/inference.GRPCInferenceService/"
SECONDS = 20.0
AT_ONCE = 8  # messages of one gRPC stream


class Attack:
    """Counts answers by door and status; `wrong` has a few undocumented answers."""

    def __init__(self, http_url: str, grpc_url: str) -> None:
        self._http, self._grpc = http_url, grpc_url
        self.answers: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._lock = threading.Lock()

    @property
    def requests(self) -> int:
        return self.answers.total()

    def run(self, requests: int, seed: int, threads: int = 4) -> None:
        """Send about this many requests. Blocks."""
        running = [
            threading.Thread(target=self._run, args=(requests // threads, seed * 1000 + index), daemon=True)
            for index in range(threads)
        ]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()

    def _run(self, requests: int, seed: int) -> None:
        messages, sent = Messages(seed), 0
        connection = http.client.HTTPConnection(self._http, timeout=SECONDS)
        with grpc.insecure_channel(self._grpc) as channel:
            doors: tuple[Callable[[], int], ...] = (
                lambda: self._post(connection, messages),
                lambda: self._bytes(messages),
                lambda: self._infer(channel, messages),
                lambda: self._stream(channel, messages),
            )
            while sent < requests:
                for door in doors:
                    sent += door()
        connection.close()

    def _post(self, connection: http.client.HTTPConnection, messages: Messages) -> int:
        path, body = messages.body()
        for again in (True, False):
            try:
                connection.request("POST", path, body)
                answer = connection.getresponse()
                said = answer.read()
                break
            except (OSError, http.client.HTTPException) as error:
                connection.close()  # it may have been idle for too long
                if not again:
                    return self._note("post", type(error).__name__, False, body)
        events = said.split(b"\n\n") if answer.getheader("content-type", "").startswith("text/event-stream") else [said]
        right = answer.status in STATUSES and all(_documented(event, answer.status) for event in events if event)
        return self._note("events" if len(events) > 1 else "post", str(answer.status), right, body + b" -> " + said)

    def _bytes(self, messages: Messages) -> int:
        """Send bytes on a new connection, and wait for one answer, or leave at once."""
        data = messages.request()
        host, _, port = self._http.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=SECONDS) as connection:
            said = b""
            with suppress(ConnectionError):
                connection.sendall(data)
                if len(data) % 3:
                    connection.shutdown(socket.SHUT_WR)
                    said = connection.recv(65536)
        status = said[9:12].decode(errors="replace")
        right = not said or (status.isdecimal() and int(status) in STATUSES | {100, 307})
        return self._note("bytes", status or "left", right, data + b" -> " + said)

    def _infer(self, channel: grpc.Channel, messages: Messages) -> int:
        data = messages.message()
        code, text = Code.OK, PREFIXES[0]
        try:
            channel.unary_unary(f"{SERVICE}ModelInfer")(data, timeout=SECONDS)
        except grpc.RpcError as error:
            code, text = error.code(), error.details()
        right = code in CODES and text.startswith(PREFIXES)
        return self._note("infer", code.name, right, data + b" -> " + text.encode(errors="replace"))

    def _stream(self, channel: grpc.Channel, messages: Messages) -> int:
        """Send some messages on one stream, each of which must get a last response."""
        sent = [messages.message() for _ in range(AT_ONCE)]
        call = channel.stream_stream(
            f"{SERVICE}ModelStreamInfer", response_deserializer=service_pb2.ModelStreamInferResponse.FromString
        )
        last = 0
        try:
            for answer in call(iter(sent), timeout=SECONDS):
                last += answer.infer_response.parameters["triton_final_response"].bool_param
                text = answer.error_message
                if text and not text.startswith(PREFIXES):
                    self._note("stream", "text", False, text.encode())
        except grpc.RpcError as error:
            return self._note("stream", error.code().name, False, repr(sent).encode())
        return self._note("stream", "ended", last == len(sent), repr(sent).encode(), len(sent))

    def _note(self, door: str, outcome: str, right: bool, what: bytes, count: int = 1) -> int:
        with self._lock:
            self.answers[f"{door} {outcome}"] += count
            if not right and len(self.wrong) < 20:
                self.wrong.append(f"{door} {outcome}: {what[:2000]!r}")
        return count


def _documented(event: bytes, status: int) -> bool:
    """Return whether the answer is JSON, and an error where it should be one."""
    body = event.removeprefix(b"data: ")
    if status == 200 and not body.startswith(b"{"):
        return False
    try:
        said = json.loads(body[: body.rfind(b"}") + 1])
    except ValueError:
        return b"binary_data_size" in body  # JSON followed by bytes
    if isinstance(said.get("error"), dict):  # OpenAI's
        return status != 200 and isinstance(said["error"].get("message"), str)
    if "error" in said:
        return str(said["error"]).startswith(PREFIXES)
    return status == 200

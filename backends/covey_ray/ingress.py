"""The deployment `Ingress`: OpenAI's API in front of all servers. Answers continue when a server is lost.

route     Ray's router chooses a replica (`covey_ray.routing`)
forward   its server's answer, as it comes
go on     if the replica or its node is lost, ask another one of the same identity with the same seed, and leave out
          the part that was sent (`covey_ray.answer`)
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from covey.front.openai import errors
from covey.process.within import within
from covey_ray.answer import BUSY, Answer
from covey_ray.asked import BROKEN, FORWARDED, HEALTH, Asked, routed_by

KEPT = ("content-type", "retry-after", "warning", "x-request-id")  # headers of answers
EVENTS = "text/event-stream"
RESPONSES = "/v1/responses"  # a repetition of its events cannot be matched with the first answer
NOWHERE = (
    "no such route here: OpenAI's API is at /v1, health at /health; metrics and Triton's protocol are each server's"
)
AGAIN = {"retry-after": "5"}


class Ingress:
    def __init__(self, servers: DeploymentHandle, bounds: tuple[int, float], *, seeds: bool) -> None:
        """`bounds` are the most bytes of a body, and the seconds until it must be here. With `seeds`, a stream without
        a seed gets one, and can be repeated."""
        # Over gRPC a replica and the ingress notice at once when the other is lost.
        self._servers = servers.options(method_name="answer", stream=True, _by_reference=False)
        self._most, self._seconds = bounds
        self._seeds = seeds

    async def __call__(self, request: Request) -> Response:
        path, headers = request.url.path, dict(request.headers)
        if (path != HEALTH and not errors.ours(path)) or {".", ".."} & set(path.split("/")):
            return JSONResponse(errors.shaped(404, NOWHERE), 404)
        try:
            body = await within(self._seconds, self._body(request))
        except asyncio.TimeoutError:
            return JSONResponse(errors.shaped(408, f"the body did not arrive within {self._seconds:g} s"), 408)
        if body is None:
            return JSONResponse(errors.shaped(413, f"the body has more than {self._most} bytes"), 413)
        try:
            said = json.loads(body) if body else {}
        except (ValueError, RecursionError):
            said = {}  # the server will report the error
        said = said if isinstance(said, dict) else {}
        if self._seeds and said.get("stream") is True and said.get("seed") is None:
            body = json.dumps({**said, "seed": secrets.randbits(63)}).encode()
        forwarded = {name: headers[name] for name in FORWARDED if name in headers}
        asked = Asked(routed_by(said, headers, path), request.method, path, forwarded, body)
        answer = Answer(self._servers, asked)
        try:
            head = await answer.head()
            if head.headers.get("content-type", "").startswith(EVENTS):
                events = answer.pieces() if path == RESPONSES else answer.events(head)
                return StreamingResponse(events, head.status, _kept(head.headers))
            head, content = await answer.whole(head)
        except (*BROKEN, RayError, RayServeException) as error:
            return JSONResponse(errors.shaped(BUSY, f"no server answers: {error}"), BUSY, AGAIN)
        return Response(content, head.status, _kept(head.headers))

    async def _body(self, request: Request) -> bytes | None:
        """Return the body, or None if it is too long."""
        if int(request.headers.get("content-length", 0)) > self._most:
            return None
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > self._most:
                return None
        return bytes(body)


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name in KEPT}

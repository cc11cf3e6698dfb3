"""The base of `Client` and `AsyncClient`: which server, and how a call becomes a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from covey_client.address import Address
from covey_client.deadline import Deadline
from covey_client.request import Request
from covey_client.wire import MODEL

USUAL_PORTS = {"grpc": 8001, "http": 8000}
TIMEOUT = 600.0  # seconds; a dead stub never answers, so a call waits for ever only if asked to


class Usual(Enum):
    """Stands for a call's default `timeout`, because None means for ever."""

    TIMEOUT = "the client's"


Timeout = float | None | Usual


class BaseClient:
    """The parts that both clients share: one server, over gRPC."""

    def __init__(
        self,
        url: str = "127.0.0.1",
        *,
        model: str = MODEL,
        timeout: float | None = TIMEOUT,
        tls: bool = False,
        root_certificates: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`url` is `host:port` of the gRPC port; `timeout` holds for every call that names none."""
        self._address = Address.parse(
            url,
            port=USUAL_PORTS["grpc"],
            tls=tls,
            root_certificates=root_certificates,
            headers=headers,
        )
        self._model = model
        self._timeout = timeout
        self._prepare()

    def _prepare(self) -> None:
        """Set up a subclass's own parts; called when everything above is set."""

    def _request(self, prompt: str | Sequence[int], settings: Mapping[str, object], *, stream: bool) -> Request:
        return Request.build(prompt, settings, stream=stream, model=self._model)

    def _deadline(self, timeout: Timeout) -> Deadline:
        return Deadline.after(self._timeout if isinstance(timeout, Usual) else timeout)

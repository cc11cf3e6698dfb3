"""How often the front asks again for what the server has died with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import pytest

from covey.front.upstream import Upstream, _BoundedResumption
from covey.supervision.deaths import Deaths
from covey_client.errors import ConnectionLost, ServerError
from covey_client.request import Request

LOST = ConnectionLost("the server went away")


def _request(_: Mapping[str, object]) -> Request:
    return Request({"text_input": ["x"]})


class Front:
    """An upstream that is never asked anything, and the deaths that it is told of."""

    def __init__(self) -> None:
        self.deaths = Deaths()
        self.draining = False
        self.upstream = Upstream("localhost:1", "localhost:2", self.deaths.fd, lambda: self.draining)

    def patience(self, **settings: object) -> _BoundedResumption:
        return _BoundedResumption(_request, settings, self.upstream)


@pytest.fixture
def front() -> Iterator[Front]:
    """Upstreams are made in an event loop."""
    loop = asyncio.new_event_loop()

    async def made() -> Front:
        return Front()

    found = loop.run_until_complete(made())
    yield found
    loop.run_until_complete(found.upstream.close())
    loop.close()


def dies(front: Front, patience: _BoundedResumption) -> None:
    """The server dies while it has the request, which is then asked again or not."""
    front.deaths.note(server=True)
    rest = patience.rest(LOST)
    if rest is None:
        raise LOST
    patience.request()


def test_what_the_server_died_of_twice_is_not_asked_a_third_time(front: Front) -> None:
    patience = front.patience()
    dies(front, patience)
    with pytest.raises(ServerError, match="died repeatedly"):
        dies(front, patience)


def test_what_a_stop_breaks_off_says_so(front: Front) -> None:
    front.draining = True
    with pytest.raises(ConnectionLost, match="was stopped before the answer ended: ask again later"):
        front.patience().rest(LOST)
    assert front.patience().rest(ServerError("not healthy")) is None

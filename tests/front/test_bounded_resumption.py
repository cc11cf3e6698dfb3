"""How often the front asks again for what the server has died with."""

from __future__ import annotations

import asyncio

import pytest

from covey.care.deaths import Deaths
from covey.front.upstream import Upstream, _BoundedResumption
from covey_client.errors import ConnectionLost, ServerError
from covey_client.request import Request
from covey_client.response import Chunk, Usage


@pytest.mark.parametrize("begun", [False, True])
def test_what_the_server_died_of_is_not_asked_for_ever(begun: bool) -> None:
    """Once more while nothing of the answer has come, and twice after that."""

    async def ask() -> None:
        deaths = Deaths()
        upstream = Upstream("localhost:1", "localhost:2", deaths.fd, lambda: False)
        patience = _BoundedResumption(lambda _: Request({"text_input": ["x"]}), {}, upstream, lambda: False)

        def dies() -> None:
            deaths.note(server=True)
            assert patience.rest(ConnectionLost("the server went away")) is not None
            patience.request()

        if begun:
            dies()
            patience.new(Chunk("a", (1,), (), "", 1, Usage(1, 1, 0, 0)))
        for _ in range(1 + begun):
            dies()
        with pytest.raises(ServerError, match="again and again"):
            dies()
        await upstream.close()

    asyncio.run(ask())

"""What the kernel says of processes."""

from __future__ import annotations

import os
import socket
from contextlib import closing

import pytest

from covey.supervision.processes import serves_somebody
from tests.waiting import until


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_process_serves_somebody_while_one_is_connected(host: str) -> None:
    with closing(socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)) as server:
        port = server.getsockname()[1]
        assert not serves_somebody(os.getpid(), port), "it only listens"
        with closing(socket.create_connection((host, port))):
            taken, _ = server.accept()
            assert serves_somebody(os.getpid(), port)
        until(lambda: not serves_somebody(os.getpid(), port))
        taken.close()


def test_one_that_has_ended_serves_nobody() -> None:
    assert not serves_somebody(0, 8001)

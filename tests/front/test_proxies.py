"""Whom a front takes for the caller behind proxies."""

from __future__ import annotations

import pytest

from covey.contracts.profile import FrontSettings
from covey.front.admission import Admission
from covey.front.connection_limit import WAITING_MESSAGES
from covey.front.failures import TooMany
from covey.front.proxies import Proxies


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("9.9.9.9", ["1.1.1.1"], "9.9.9.9"),
        ("10.0.0.5", [], "10.0.0.5"),
        ("10.0.0.5", ["1.1.1.1"], "1.1.1.1"),
        ("10.0.0.5", ["1.1.1.1, 8.8.8.8"], "8.8.8.8"),
        ("10.0.0.5", ["1.1.1.1", "8.8.8.8,10.0.0.9"], "8.8.8.8"),
        ("10.0.0.5", ["10.0.0.7"], "10.0.0.7"),
        ("10.0.0.5", ["1.1.1.1, unknown"], "10.0.0.5"),
        ("10.0.0.5", ["1.1.1.1:4711"], "1.1.1.1"),
        ("::ffff:10.0.0.5", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("fd00::2", ["1.1.1.1"], "1.1.1.1"),
        ("fd00::3", ["1.1.1.1"], "fd00::3"),
        ("", ["1.1.1.1"], ""),
        ("::ffff:9.9.9.9", [], "9.9.9.9"),
        ("10.0.0.5", ["1.1.1.1", *["10.0.0.7"] * 15], "1.1.1.1"),
        ("10.0.0.5", ["1.1.1.1", *["10.0.0.7"] * 16], "10.0.0.7"),
    ],
)
def test_the_last_address_that_is_no_trusted_proxy_s_is_the_client(
    peer: str, forwarded: list[str], client: str
) -> None:
    assert Proxies(["10.0.0.0/8", "fd00::2"]).client(peer, forwarded) == client


def test_a_trusted_proxy_may_have_all_connections_and_all_bytes_of_unfinished_requests() -> None:
    settings = FrontSettings(connections=4, message_bytes=1000, proxies=("10.0.0.5",))
    limit, cut = Admission(settings).connections, list[str]()
    slots = [limit.acquire("10.0.0.5", cut.append) for _ in range(4)]
    slots[0].came(WAITING_MESSAGES * 1000)
    assert not cut
    for slot in slots:
        slot.serve()
    with pytest.raises(TooMany, match="more than 4 connections"):
        limit.acquire("10.0.0.5", cut.append)

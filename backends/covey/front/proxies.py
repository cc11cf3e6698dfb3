"""Finds the client's address behind trusted proxies. For example, 10.0.0.0/8 is trusted, and a connection from
10.0.0.5 has `X-Forwarded-For: 9.9.9.9, 8.8.8.8, 10.0.0.9`. Its client is 8.8.8.8, which may have made up 9.9.9.9."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

HEADER = "x-forwarded-for"
MOST_HOPS = 16  # a client may send a header with thousands of addresses


class Proxies:
    """The peers that are trusted to name a client's address."""

    def __init__(self, networks: Collection[str]) -> None:
        self._networks = [ip_network(each) for each in networks]

    def trusted(self, address: str) -> bool:
        found = _parsed(address)
        return found is not None and any(found in network for network in self._networks)

    def client(self, peer: str, forwarded: Iterable[str]) -> str:
        """Return the address of the client that calls through `peer`. `forwarded` are the values of its headers."""
        client = str(_parsed(peer) or peer)
        for said in reversed(",".join(forwarded).rsplit(",", MOST_HOPS)[-MOST_HOPS:]):
            found = _parsed(said)
            if found is None or not self.trusted(client):
                break
            client = str(found)
        return client


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address without its port, if any. IPv4 in the form of IPv6 becomes IPv4."""
    host = text.strip()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        found = ip_address(host)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found

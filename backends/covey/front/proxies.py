"""Tells who asks through a trusted proxy. For example, with 10.0.0.0/8 trusted, a connection from 10.0.0.5 whose
`X-Forwarded-For` is `9.9.9.9, 8.8.8.8, 10.0.0.9` is from 8.8.8.8: the caller itself may have written what precedes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

HEADER = "x-forwarded-for"


class Proxies:
    """The peers whose word about an address is taken."""

    def __init__(self, networks: Collection[str]) -> None:
        self._networks = [ip_network(each) for each in networks]

    def trusted(self, address: str) -> bool:
        found = _parsed(address)
        return found is not None and any(found in network for network in self._networks)

    def client(self, peer: str, forwarded: Iterable[str]) -> str:
        """Return the address of the client behind `peer`; `forwarded` are the values of its headers."""
        client = peer
        for said in reversed(",".join(forwarded).split(",")):
            found = _parsed(said)
            if found is None or not self.trusted(client):
                break
            client = str(found)
        return client


def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    """Return an address, with or without a port."""
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

"""Handles messages over a link (`covey.tritonio.link`): requests from `covey_unary` and questions from the launcher.

submit    Take a request.
cancel    Its client has left.
serves    Return whether this model serves yet, or why it never will.
drain     Take no more requests. Return how many are open, None before there is an engine.
"""

from __future__ import annotations

from covey.public_model.life import Life
from covey.public_model.requests import Requests
from covey.tritonio.link import ANSWER_SECONDS, Message, Peer
from covey.tritonio.peers import PeerOutlet


class LinkHandler:
    """Owns the open exchanges of each peer. Each peer calls from its own thread."""

    def __init__(self, life: Life, requests: Requests) -> None:
        self._life, self._requests = life, requests
        self._open: dict[tuple[int, int], tuple[int, PeerOutlet]] = {}

    def received(self, peer: Peer, message: Message) -> None:
        exchange, kind = message.exchange, message.kind
        entry, service = (id(peer), exchange), self._life.service
        if kind == "submit":
            outlet = PeerOutlet(peer, exchange)
            key = self._requests.new_key()
            self._open[entry] = key, outlet
            outlet.closed = lambda: self._open.pop(entry, None)
            self._requests.take(key, outlet, message.arrays, message.value)
        elif kind == "cancel":
            self._cancel(entry)
        elif kind == "serves":
            peer.send(Message(exchange, kind, self._life.serves(ANSWER_SECONDS / 2)))
        elif kind == "drain":
            peer.send(Message(exchange, "draining", None if service is None else service.drain()))

    def lost(self, peer: Peer) -> None:
        """Cancel the requests of a lost peer."""
        for entry in list(self._open):
            if entry[0] == id(peer):
                self._cancel(entry)

    def _cancel(self, entry: tuple[int, int]) -> None:
        key, outlet = self._open.get(entry, (0, None))
        if outlet is not None:
            outlet.cancelled = True
            self._requests.cancel(key)

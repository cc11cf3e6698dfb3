"""Compares greedy texts in float32, token by token, with those of Covey's target alone: whether all write the same."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from covey.contracts.errors import CoveyError
from covey.contracts.types import JsonDict
from loadtest.bench.peers.asked import OverPipe, Peer, ours, pythons
from loadtest.bench.peers.line_up import Pair, given_to_peers
from loadtest.bench.session import QUICK, Session
from loadtest.bench.work import Run

FLOAT32 = "float32"
PROMPTS, TOKENS = 8, 48
QUICK_PROMPTS, QUICK_TOKENS = 2, 12
DEPTH = 4


def texts(session: Session, pair: Pair) -> JsonDict:
    """Return how texts differ, by peer, plain and with drafts. One process runs at a time: weights of four bytes fill
    memories."""
    quick = session.wanted.size == QUICK
    count, tokens = (QUICK_PROMPTS, QUICK_TOKENS) if quick else (PROMPTS, TOKENS)
    asks = pair.asks(count, tokens, 0.0, session.wanted.seed)
    found: JsonDict = {}
    with session.status("texts in float32"), tempfile.TemporaryDirectory() as kept:
        given = {"profile_name": pair.profile_name, "numerics": "auto", "dtype": FLOAT32}
        pipe, _ = ours("alone in float32", "alone", target=pair.target, **given)
        with closing(pipe):
            expected = OverPipe("alone", lambda: pipe).run(asks, count)
        for name, python in pythons(session.wanted.peers).items():
            peer = Peer(name, python, given_to_peers(pair, FLOAT32, Path(kept)))
            for depth in (0, DEPTH):
                asked = peer.at(depth)
                try:
                    found[asked.name] = differences(expected, asked.run(asks, count))
                except CoveyError as error:
                    found[asked.name] = {"error": str(error)[:500]}
                finally:
                    peer.close()
    return found


def differences(expected: Run, got: Run) -> JsonDict:
    """Return how many texts are the same, and where each of the others first differs. What follows a difference is
    another text and says nothing."""
    pairs = [(ours.tokens, theirs.tokens) for ours, theirs in zip(expected.answers, got.answers, strict=True)]
    first = [_first(*pair) for pair in pairs]
    return {
        "texts": len(pairs),
        "same": first.count(None),
        "first_difference": [at for at in first if at is not None],
        "tokens": max(len(text) for text, _ in pairs),
    }


def _first(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    if len(ours) != len(theirs):
        return min(len(ours), len(theirs))
    return next((at for at, (a, b) in enumerate(zip(ours, theirs)) if a != b), None)

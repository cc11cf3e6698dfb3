"""Merges of a SentencePiece vocabulary, which has scores instead: of two neighbours, those merge first whose piece has
the highest score, the leftmost ones among equals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from covey.contracts.errors import SettingError, UnsupportedModel

SPACE = "\u2581"  # stands for a space in pieces


def merges(tokens: Sequence[str], scores: Sequence[float], normal: Sequence[bool]) -> list[tuple[str, str]]:
    """Return the pairs in the order in which they merge. A piece that several pairs make has them in the order of
    their tokens' ids, as in Hugging Face's files of such vocabularies."""
    if len(scores) != len(tokens):
        raise SettingError(f"it has {len(tokens)} tokens and {len(scores)} scores; fetch it again")
    if not all(map(math.isfinite, scores)):
        raise SettingError("it has a score that is NaN or infinite; fetch it again")
    places = {token: place for place, token in enumerate(tokens) if normal[place]}
    found: list[tuple[float, int, int, int]] = []
    scored: dict[float, int] = {}
    for token, place in places.items():
        cuts = ((places.get(token[:cut]), places.get(token[cut:])) for cut in range(1, len(token)))
        pairs = [(left, right) for left, right in cuts if left is not None and right is not None]
        if pairs and scored.setdefault(scores[place], place) != place:
            raise UnsupportedModel("two SentencePiece tokens of one score are not supported: their order is not known")
        found += [(-scores[place], place, left, right) for left, right in pairs]
    return [(tokens[left], tokens[right]) for *_, left, right in sorted(found)]

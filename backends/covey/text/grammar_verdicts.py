"""Caches the compiler's verdicts on recent grammars, so that repeated requests do not wait for the compiler."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from covey.contracts.errors import Overloaded
from covey.text.grammar import SOURCES

MOST = 4096  # grammars
GIVEN_UP_SECONDS = 30.0  # before a grammar that was given up is tried again
EndIds = tuple[int, ...]


@dataclass(frozen=True)
class _Verdict:
    allowed: str = ""  # if it was refused: what is allowed instead
    given_up: str = ""
    until: float = float("inf")


class Verdicts:
    """Thread-safe. `compiled` raises ValueError if a grammar is refused, and Overloaded if it was given up."""

    def __init__(self, compiled: Callable[[str, str, EndIds], str], now: Callable[[], float] = time.monotonic) -> None:
        self._compiled, self._now = compiled, now
        self._found: OrderedDict[bytes, _Verdict] = OrderedDict()
        self._lock = threading.Lock()

    def knows(self, name: str, text: str, end_ids: EndIds) -> bool:
        return self._get(_key(name, text, end_ids)) is not None

    def compiled(self, name: str, text: str, end_ids: EndIds) -> str:
        """Return the grammar; wait for the compiler if it is not cached. Raises the compiler's errors."""
        key = _key(name, text, end_ids)
        verdict = self._get(key)
        if verdict is None:
            verdict = self._asked(name, text, end_ids)
            with self._lock:
                self._found[key] = verdict
                while len(self._found) > MOST:
                    self._found.popitem(last=False)
        if verdict.given_up:
            raise Overloaded(verdict.given_up)
        if verdict.allowed:
            raise ValueError(verdict.allowed)
        return SOURCES[name](text)

    def _asked(self, name: str, text: str, end_ids: EndIds) -> _Verdict:
        try:
            self._compiled(name, text, end_ids)
        except ValueError as error:
            return _Verdict(allowed=str(error))
        except Overloaded as error:
            return _Verdict(given_up=str(error), until=self._now() + GIVEN_UP_SECONDS)
        return _Verdict()

    def _get(self, key: bytes) -> _Verdict | None:
        with self._lock:
            verdict = self._found.get(key)
            if verdict is None or verdict.until < self._now():
                return None
            self._found.move_to_end(key)
            return verdict


def _key(name: str, text: str, end_ids: EndIds) -> bytes:
    return hashlib.sha256(repr((name, text, end_ids)).encode(errors="surrogatepass")).digest()

"""Finds the request of each row of a call. vLLM's call names none, so a request is recognised by its text.

Before the step, a row has the same text as its request had at the last call. The request may then have been in another
row: vLLM moves rows, preempts them and brings them back. If two requests have the same text and settings, drafters do
not mind a mix-up. An example, with `sampled` as vLLM gives it:

    call 1    row 0: 5 6 7, sampled 7             request 1, prompt 5 6
              row 1: 8 9, sampled 9               request 2, prompt 8
    call 2    row 0: 8 9 3 4, sampled 3 4         request 2, moved
              row 1: 5 6 5 5, sampled nothing     no request yet: its prompt is still being read

A program that holds vLLM's engine may pass vLLM's own requests (`CoveyProposer.attend`); then their names are used.

A request whose row is missing may have been preempted. Unless vLLM says which requests it holds, it counts as ended
after LEAVE calls. If it comes back later it is a new request, with all of its text as the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from covey.contracts.types import Ints, Request, Sampling
from covey.requests.active import ActiveRequest

LEAVE = 16  # calls without its row after which a request counts as ended
TAIL = 32  # tokens at a text's end that are compared first, with the row's earlier text

SPECULATION = re.compile(r"auto|off|fixed:([1-9]|[12]\d|3[0-2])")

Tokens = npt.NDArray[np.int32]  # [rows, positions]
End = tuple[int, bytes]  # a text's length and its last tokens


class Named(Protocol):
    """The part of vLLM's state of a request (its runner's `CachedRequestState`) that is read."""

    req_id: str
    sampling_params: Any


@dataclass(slots=True, eq=False)
class Text:
    """A request with the tokens of its row, as of the last call that had its row."""

    active: ActiveRequest
    end: End = (0, b"")
    missed: int = 0  # consecutive calls without its row
    name: str = ""  # vLLM's, if known

    def begins(self, tokens: Ints) -> bool:
        """Return whether `tokens` begin with this text."""
        own = self.active.tokens()
        return len(own) <= len(tokens) and np.array_equal(tokens[: len(own)], own)


@dataclass(frozen=True, slots=True)
class Row:
    """The state of one row of a call, after a step."""

    active: ActiveRequest | None  # None: its prompt is still being read
    sampled: Sequence[int]  # the step's tokens
    followed: bool  # the last call had this text without `sampled`, so the draft's outcome is known
    read: int  # the most tokens of its prompt that the step may have computed


@dataclass(slots=True)
class Texts:
    """Owns the requests. `limit` is vLLM's longest text; `drafters` are the names that requests may ask for."""

    limit: int
    drafters: Collection[str] = ()
    _texts: dict[int, Text] = field(default_factory=dict)  # by key
    _names: dict[str, Text] = field(default_factory=dict)  # by vLLM's name
    _before: list[Text | None] = field(default_factory=list)  # of the last call's rows
    _keys: Iterator[int] = field(default_factory=lambda: count(1))

    def __len__(self) -> int:
        return len(self._texts)

    def follow(
        self,
        sampled: Sequence[Sequence[int]],
        lengths: Ints,
        tokens: Tokens,
        now: float,
        requests: Sequence[Named] | None = None,
    ) -> list[Row]:
        """Return the requests of these rows, brought up to date. vLLM's own `requests` give their names, and may say
        how to draft for them."""
        texts = [row[:length] for row, length in zip(tokens, lengths[: len(sampled)].tolist())]
        if requests is None:
            found = self._found([text[: len(text) - len(new)] for text, new in zip(texts, sampled)])
        else:
            found = [self._names.get(each.req_id) for each in requests]
        rows, here = [], list[Text | None]()
        for row, (text, own, brought) in enumerate(zip(found, texts, sampled)):
            named = None if requests is None else requests[row]
            text, made = self._row(text, own, brought, now, named)
            if text is not None:
                text.end = _end(own)
            rows.append(made)
            here.append(text)
        self._before = here
        return rows

    def gone(self, held: Container[str] | None = None) -> list[ActiveRequest]:
        """Forget ended requests and return them. A request has ended if its name is not in `held`; without names, if it
        had no row for more than LEAVE calls. Call it once after each `follow`."""
        here = {id(text) for text in self._before}
        ended = []
        for key, text in list(self._texts.items()):
            text.missed = 0 if id(text) in here else text.missed + 1
            if text.name not in held if held is not None and text.name else text.missed > LEAVE:
                ended.append(self._texts.pop(key).active)
                self._names.pop(text.name, None)
        return ended

    def _found(self, rows: Sequence[Ints]) -> list[Text | None]:
        """Return, for each row, the request with the longest text that the row's text before the step begins with. The
        request that had the row last is tried first, by the end of its text, because it usually still has the row."""
        found: list[Text | None] = [None] * len(rows)
        free = dict(self._texts)
        for row, (text, tokens) in enumerate(zip(self._before, rows)):
            if text is not None and text.end == _end(tokens):
                found[row] = free.pop(text.active.key)
        lost = [row for row, text in enumerate(found) if text is None]
        if not lost or not free:
            return found
        longest = sorted(free.values(), key=lambda text: -text.active.num_tokens)
        for row in sorted(lost, key=lambda row: -len(rows[row])):
            text = next((each for each in longest if each.begins(rows[row])), None)
            if text is not None:
                longest.remove(text)
                found[row] = text
        return found

    def _row(
        self, text: Text | None, tokens: Ints, sampled: Sequence[int], now: float, named: Named | None
    ) -> tuple[Text | None, Row]:
        if text is None and not sampled:
            return None, Row(None, sampled, False, len(tokens))
        followed = text is not None and text.active.num_tokens == len(tokens) - len(sampled)
        if text is None:
            text = self._opened(tokens[: len(tokens) - len(sampled)].copy(), now, named)
        text.active.emit(list(sampled) if followed else tokens[text.active.num_tokens :].tolist(), now)
        followed = followed and bool(sampled)
        return text, Row(text.active, sampled, followed, 0 if followed else len(tokens))

    def _opened(self, prompt: Ints, now: float, named: Named | None) -> Text:
        """Open a request. If its sampling is unknown, it is treated as greedy: the likeliest tokens have the best
        chance to be accepted."""
        room = max(1, self.limit - len(prompt))
        request = Request(next(self._keys), prompt, room, Sampling(), len(prompt), arrival=now)
        if named is not None:
            request = self._as_wanted(request, named)
        text = Text(ActiveRequest(request, admitted=now), name="" if named is None else named.req_id)
        self._texts[request.key] = text
        if named is not None:
            self._names[text.name] = text
        return text

    def _as_wanted(self, request: Request, named: Named) -> Request:
        """Return the request with its length limit, and with `speculation`, `drafter` and `tenant` from `extra_args`,
        as in Covey's own requests. Invalid values are ignored: vLLM has taken the request, so it cannot be refused."""
        wanted = getattr(named.sampling_params, "extra_args", None) or {}
        speculation, drafter = wanted.get("speculation", "auto"), wanted.get("drafter", "")
        if not isinstance(speculation, str) or not SPECULATION.fullmatch(speculation):
            speculation = "auto"
        return replace(
            request,
            max_tokens=min(
                request.max_tokens, getattr(named.sampling_params, "max_tokens", None) or request.max_tokens
            ),
            speculation=speculation,
            drafter=drafter if drafter in self.drafters else "",
            tenant=str(wanted.get("tenant", "")),
        )


def _end(text: Ints) -> End:
    return len(text), text[-TAIL:].tobytes()

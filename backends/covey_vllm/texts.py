"""The request of each row of a call. vLLM's call names none, so a request is recognised by its text.

A row's text before the step is the text that its request had at the call before, wherever its row was then: rows are
moved, preempted and brought back, and what is swapped between two requests of one text and settings makes no
difference to drafters. For example, with `sampled` as vLLM gives it:

    call 1    row 0: 5 6 7, sampled 7             request 1, prompt 5 6
              row 1: 8 9, sampled 9               request 2, prompt 8
    call 2    row 0: 8 9 3 4, sampled 3 4         request 2, moved
              row 1: 5 6 5 5, sampled nothing     nobody yet: its prompt is still being read

A program that holds vLLM's engine may give vLLM's own requests (`CoveyProposer.attend`): then their names are used.

A request whose row is missing may have been preempted; after LEAVE calls it is taken to have ended, where vLLM does not
say so. One that comes back later is a new request, whose prompt is all of its text.
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

LEAVE = 16  # calls without a row of it after which a request is taken to have ended
TAIL = 32  # tokens at a text's end by which it is known where its row was before

SPECULATION = re.compile(r"auto|off|fixed:([1-9]|[12]\d|3[0-2])")

Tokens = npt.NDArray[np.int32]  # [rows, positions]
End = tuple[int, bytes]  # a text's length and its last tokens


class Named(Protocol):
    """The state that vLLM's runner keeps of a request (its `CachedRequestState`), as far as it is looked at."""

    req_id: str
    sampling_params: Any


@dataclass(slots=True, eq=False)
class Text:
    """A request, whose tokens are those of its row at the last call that had one."""

    active: ActiveRequest
    end: End = (0, b"")
    missed: int = 0  # calls in a row that had none
    name: str = ""  # vLLM's, where it says so

    def begins(self, tokens: Ints) -> bool:
        """Return whether `tokens` begin with this text."""
        own = self.active.tokens()
        return len(own) <= len(tokens) and np.array_equal(tokens[: len(own)], own)


@dataclass(frozen=True, slots=True)
class Row:
    """The state of one row of a call, after a step."""

    active: ActiveRequest | None  # None: its prompt is still being read
    sampled: Sequence[int]  # what the step brought
    followed: bool  # the call before had its text without these: they tell what became of its drafts
    read: int  # tokens of its prompt that the step may have computed, at most


@dataclass(slots=True)
class Texts:
    """Owns the requests. `limit` is the longest text that vLLM allows, `drafters` those that requests can name."""

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
        """Return the requests of these rows, brought up to date. With vLLM's own `requests` they are known by name, and
        may say how they want to be drafted for."""
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
        """Forget requests that vLLM does not hold any more, by the names of those that it does; where it names none,
        those that had no row for long. Called once after each `follow`."""
        here = {id(text) for text in self._before}
        ended = []
        for key, text in list(self._texts.items()):
            text.missed = 0 if id(text) in here else text.missed + 1
            if text.name not in held if held is not None and text.name else text.missed > LEAVE:
                ended.append(self._texts.pop(key).active)
                self._names.pop(text.name, None)
        return ended

    def _found(self, rows: Sequence[Ints]) -> list[Text | None]:
        """Return the request whose text each row had before the step, or goes on from, the one with the longest such
        text. Where a row was is looked at first, by the end of its text alone: as a rule it is there."""
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
        judged = followed and bool(sampled)
        return text, Row(text.active, sampled, judged, 0 if judged else len(tokens))

    def _opened(self, prompt: Ints, now: float, named: Named | None) -> Text:
        """Open a request. One of unknown sampling is drafted for as if it were greedy, which is what is
        likeliest to be accepted of a draft that is taken for certain."""
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
        """Return the request with its greatest length, and with `speculation`, `drafter` and `tenant` as Covey's own
        requests have them, from `extra_args`. What is no such value is left out: a request that vLLM has taken is not
        refused here."""
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

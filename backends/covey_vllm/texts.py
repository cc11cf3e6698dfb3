"""Which request each row of a call is. vLLM's call names none, so a request is known by its text.

A row's text before the step is the text that its request had at the call before, wherever its row was then: rows are
moved, preempted and brought back, and what is swapped between two requests of one text and settings makes no
difference to drafters. For example, with `sampled` as vLLM gives it:

    call 1    row 0: 5 6 7, sampled 7             request 1, prompt 5 6
              row 1: 8 9, sampled 9               request 2, prompt 8
    call 2    row 0: 8 9 3 4, sampled 3 4         request 2, moved
              row 1: 5 6 5 5, sampled nothing     nobody yet: its prompt is still being read

Where vLLM gives its own requests beside the call (docs/vllm.md) their names are used instead.

A request whose row is missing may have been preempted; after LEAVE calls it is taken to have ended. One that comes back
later is a new request, whose prompt is all of its text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from covey.active import ActiveRequest
from covey.types import Ints, Request, Sampling

LEAVE = 16  # calls without a row of it after which a request is taken to have ended

SPECULATION = re.compile(r"auto|off|fixed:([1-9]|[12]\d|3[0-2])")

Tokens = npt.NDArray[np.int32]  # [rows, positions]


class Named(Protocol):
    """What vLLM's runner keeps of a request (its `CachedRequestState`), as far as it is looked at."""

    req_id: str
    sampling_params: Any


@dataclass(slots=True, eq=False)
class Text:
    """A request and its text as of the last call that had a row of it."""

    active: ActiveRequest
    tokens: Ints
    missed: int = 0  # calls in a row that had none
    name: str = ""  # vLLM's, where it says so

    def begins(self, tokens: Ints) -> bool:
        """Whether those go on from this text, or are it."""
        return len(self.tokens) <= len(tokens) and bool(np.array_equal(tokens[: len(self.tokens)], self.tokens))


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a call, after a step."""

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
        """Whose rows these are, their requests brought up to date. With vLLM's own `requests` they are known by name,
        and may say how they want to be drafted for."""
        texts = [tokens[row, :length] for row, length in enumerate(lengths[: len(sampled)].tolist())]
        before = [text[: len(text) - len(new)] for text, new in zip(texts, sampled)]
        found = self._found(before) if requests is None else [self._names.get(each.req_id) for each in requests]
        rows = [
            self._row(each, text, new, now, None if requests is None else requests[row])
            for row, (each, text, new) in enumerate(zip(found, texts, sampled))
        ]
        self._before = [None if row.active is None else self._texts[row.active.key] for row in rows]
        return rows

    def gone(self) -> list[ActiveRequest]:
        """Forget requests that had no row for long; called once after each `follow`."""
        here = {id(text) for text in self._before}
        ended = []
        for key, text in list(self._texts.items()):
            text.missed = 0 if id(text) in here else text.missed + 1
            if text.missed > LEAVE:
                ended.append(self._texts.pop(key).active)
                self._names.pop(text.name, None)
        return ended

    def _found(self, before: Sequence[Ints]) -> list[Text | None]:
        """The request whose text each is or goes on from, the one with the longest such text. Where a row was is looked
        at first: as a rule it is there."""
        found: list[Text | None] = [None] * len(before)
        free = dict(self._texts)
        for row, (tokens, text) in enumerate(zip(before, self._before)):
            if text is not None and len(text.tokens) == len(tokens) and text.begins(tokens):
                found[row] = free.pop(text.active.key)
        lost = [row for row, text in enumerate(found) if text is None]
        if not lost or not free:
            return found
        longest = sorted(free.values(), key=lambda text: -len(text.tokens))
        for row in sorted(lost, key=lambda row: -len(before[row])):
            text = next((each for each in longest if each.begins(before[row])), None)
            if text is not None:
                longest.remove(text)
                found[row] = text
        return found

    def _row(self, text: Text | None, tokens: Ints, sampled: Sequence[int], now: float, named: Named | None) -> Row:
        known = 0 if text is None else len(text.tokens)
        followed = text is not None and known == len(tokens) - len(sampled)
        if text is None and not sampled:
            return Row(None, sampled, False, len(tokens))
        if text is None:
            known = len(tokens) - len(sampled)
            text = self._opened(tokens[:known].copy(), now, named)
        text.active.emit(tokens[known:].tolist(), now)
        text.tokens = tokens.copy()
        return Row(text.active, sampled, followed and bool(sampled), 0 if followed and sampled else len(tokens))

    def _opened(self, prompt: Ints, now: float, named: Named | None) -> Text:
        """A request whose sampling nobody says: drafted for as if it were greedy, which is what is likeliest to be
        accepted of a draft that is taken for certain."""
        room = max(1, self.limit - len(prompt))
        request = Request(next(self._keys), prompt, room, Sampling(), len(prompt), arrival=now)
        if named is not None:
            request = self._as_wanted(request, named)
        text = Text(ActiveRequest(request, admitted=now), prompt, name="" if named is None else named.req_id)
        self._texts[request.key] = text
        if named is not None:
            self._names[text.name] = text
        return text

    def _as_wanted(self, request: Request, named: Named) -> Request:
        """With `speculation` and `drafter` as Covey's own requests have them, from `extra_args`. What is no such value
        is left out: a request that vLLM has taken is not refused here."""
        wanted = getattr(named.sampling_params, "extra_args", None) or {}
        speculation, drafter = wanted.get("speculation", "auto"), wanted.get("drafter", "")
        if not isinstance(speculation, str) or not SPECULATION.fullmatch(speculation):
            speculation = "auto"
        return replace(request, speculation=speculation, drafter=drafter if drafter in self.drafters else "")

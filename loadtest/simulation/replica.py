"""Simulates a target: rows that share its rounds, prompts that are read between them, and prefixes that it keeps."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from covey_client.star.capacity import TargetLoad

GRID = 32  # tokens between which no difference is made in what is read
LONGEST = 2048  # tokens of a prompt, and of an answer


class Pace:
    """Says how long rounds take, by rows."""

    def __init__(self, server: TargetLoad) -> None:
        self.tokens = [0.0, *(tokens / seconds for _, seconds, tokens in server.rounds)]  # of a row, per second
        self.round = [0.0, *(seconds for _, seconds, _ in server.rounds)]
        lengths = range(0, LONGEST + GRID, GRID)
        self._longer = [[server.reading(rows, tokens) for tokens in lengths] for rows in range(server.rows + 1)]

    def longer(self, rows: int, tokens: int) -> float:
        """Return how much longer the passes of so many rows are for a prompt."""
        return self._longer[rows][min(tokens, LONGEST) // GRID]


@dataclass(slots=True)
class FleetStream:
    """Follows one client's stream from replica to replica."""

    prefix: int
    prompt: int  # tokens behind the prefix
    output: float  # tokens that are still to come
    arrived: float
    tokens: float  # of the whole answer
    first: float = math.inf
    ended: float = math.inf
    replica: int = -1
    router: int = 0
    began: float = 0.0  # `served` of its replica when it began there


@dataclass(slots=True)
class Replica:
    there: bool = True
    at: float = 0.0  # until when the others hold
    served: float = 0.0  # tokens that a row has had which has always been there
    reading: float = 0.0  # seconds of prompts that are still to be read
    rows: list[tuple[float, int]] = field(default_factory=list)  # heap of (`served` at which it ends, stream)
    waiting: deque[int] = field(default_factory=deque)
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)
    version: int = 0  # of the next end that is in the queue of events

    def advance(self, now: float, pace: Pace) -> None:
        passed = now - self.at
        read = min(self.reading, passed)
        self.reading -= read
        self.served += (passed - read) * pace.tokens[len(self.rows)]
        self.at = now

    def keeps(self, prefix: int, most: int) -> bool:
        """Return whether the replica has the prefix; from now on it has, and the one that was not asked for the longest
        makes room."""
        if prefix in self.cache:
            self.cache.move_to_end(prefix)
            return True
        self.cache[prefix] = None
        if len(self.cache) > most:
            self.cache.popitem(last=False)
        return False

    def begin(self, key: int, asked: FleetStream, pace: Pace, more: int) -> float:
        """Begin a row more, with so many tokens to read beside its prompt; return how long its first token takes. Half
        of a round is over when it comes."""
        rows = len(self.rows)
        self.reading += pace.longer(rows, asked.prompt + more)
        asked.began = self.served
        heapq.heappush(self.rows, (self.served + asked.output, key))
        return self.reading + 1.5 * pace.round[rows + 1]

    def next_end(self, pace: Pace) -> float:
        """Return when the next row ends if nothing else happens."""
        left = max(0.0, self.rows[0][0] - self.served) / pace.tokens[len(self.rows)]
        return self.at + self.reading + left

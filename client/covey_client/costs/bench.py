"""Puts a shape of load on the server and picks, out of the rounds that the server reports, those of that shape."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from covey_client.address import Address
from covey_client.costs import shapes
from covey_client.costs.shapes import PROMPT, Batch, Prefill, Switch
from covey_client.deadline import Deadline
from covey_client.errors import Cancelled, Overloaded
from covey_client.grpc_transport import GrpcCall, GrpcTransport
from covey_client.reports import Facts, Reports, Round
from covey_client.request import Request

POLL_SECONDS = 0.05
SHAPE_SECONDS = 120.0  # at most, for one visit of a shape
ENDED_SECONDS = 30.0  # for cancelled requests to leave the batch
FIRST = 4  # rounds of a shape that are unlike those that follow
TRIES = 3  # a busy machine may not send requests in time to meet
ARRIVAL_SECONDS = 0.01  # between requests whose order matters

Seen = Callable[[list[Round]], bool]


class Bench:
    """One server, which must serve nobody else meanwhile."""

    def __init__(self, grpc_url: str, reports: Reports, facts: Facts, *, seed: int = 0) -> None:
        self._transport = GrpcTransport(Address.parse(grpc_url, port=8001))
        self._reports = reports
        self._facts = facts
        self._rng = random.Random(seed)
        self._last = reports.last_round()  # the number of the last round seen

    def close(self) -> None:
        self._transport.close()

    def decode(self, shape: Batch, wanted: int) -> list[Round]:
        """Rounds of that batch, as many as wanted if they come in time."""

        def fits(found: Round) -> bool:
            return (found.decoding, found.prefill_tokens, found.drafted) == (shape.rows, 0, shape.rows * shape.depth)

        room = min(self._facts.max_positions - PROMPT, 15 * PROMPT)
        calls = [self._ask(PROMPT, room, shape.drafter, shape.depth) for _ in range(shape.rows)]
        found = self._watch(calls, lambda rounds: sum(map(fits, rounds)) >= wanted + FIRST)
        return [each for each in found if fits(each)][FIRST:]

    def read(self, shape: Prefill) -> list[Round]:
        """The round that read the prompt."""

        def fits(found: Round) -> bool:
            return (found.decoding, found.prefill_tokens) == (0, shape.tokens)

        found = self._watch([self._ask(shape.tokens, 1)], lambda rounds: any(map(fits, rounds)))
        return [each for each in found if fits(each)]

    def begin(self, shape: Switch) -> Beginning | None:
        """Return the time that catching up took, or None where the rows would not begin together."""
        for _ in range(TRIES):
            found = beginning(self._together(shape), shape.lag, shape.rows)
            if found is not None:
                return found
        return None

    def _together(self, shape: Switch) -> list[Round]:
        """Rows draft only when a pass has room beside prompts: a long prompt before them gathers them, one behind them
        keeps the passes full until the last of them has been read. Then all begin at once."""
        room = shapes.growth(self._facts, shape.lag, shape.rows)
        filled = shapes.blocker(self._facts)
        calls = [self._ask(filled, 1, priority=2)]
        time.sleep(ARRIVAL_SECONDS)
        calls += [self._ask(shape.lag, room, shape.drafter, 1, priority=1) for _ in range(shape.rows)]
        time.sleep(ARRIVAL_SECONDS)
        calls.append(self._ask(filled, 1, priority=0))
        return self._watch(calls, lambda rounds: any(each.trees == shape.rows for each in rounds))

    def _ask(self, prompt: int, room: int, drafter: str = "", depth: int = 0, priority: int = 0) -> GrpcCall:
        """A request that starts at once, shares no prefix with another and ends by its length alone."""
        tokens = [self._rng.randrange(1, self._facts.vocab_size - 1) for _ in range(prompt)]
        settings: dict[str, object] = {
            "max_tokens": room,
            "end_id": self._facts.vocab_size - 1,
            "speculation": f"fixed:{depth}" if depth else "off",
            "drafter": drafter or None,
            "priority": priority,
        }
        return self._transport.call(Request.build(tokens, settings, stream=False), Deadline.after(2 * SHAPE_SECONDS))

    def _watch(self, calls: Sequence[GrpcCall], enough: Seen) -> list[Round]:
        """The rounds that the calls bring, until there are enough; then the calls are given up and waited for."""
        rounds: list[Round] = []
        until = time.monotonic() + SHAPE_SECONDS
        ended = False
        while not (ended or enough(rounds) or time.monotonic() > until):
            time.sleep(POLL_SECONDS)
            new = self._reports.rounds(self._last)
            if new:
                rounds += new
                self._last, ended = new[-1].round, new[-1].idle
        for call in calls:
            call.cancel()
        for call in calls:
            with contextlib.suppress(Cancelled):
                next(call.chunks(), None)
        self.settle()
        return rounds

    def settle(self) -> None:
        """Wait until nothing is served; raises Overloaded where that does not come."""
        until = time.monotonic() + ENDED_SECONDS
        while time.monotonic() < until:
            found = self._reports.rounds(max(0, self._last - 1))
            self._last = found[-1].round if found else 0
            if not found or found[-1].idle:
                return
            time.sleep(POLL_SECONDS)
        raise Overloaded("the server is serving others: measure when it is idle")


@dataclass(frozen=True)
class Beginning:
    """Rows that began to draft together: the longest lag, and what catching up took, over as many rounds as it took."""

    lag: int
    rows: int
    seconds: float


def beginning(rounds: Sequence[Round], prompt: int, rows: int) -> Beginning | None:
    """Return how the rows began to draft, None where they did not begin together. `prompt`: tokens of each; a row has
    one more when it has been read, and another for each round in which it decoded plainly."""
    first = next((index for index, each in enumerate(rounds) if each.catch_up_seconds > 0), None)
    if first is None or rounds[first].decoding != rows:
        return None
    last = next((index for index, each in enumerate(rounds) if each.trees == rows), None)
    if last is None:
        return None
    plain = sum(each.decoding > 0 for each in rounds[:first])
    return Beginning(prompt + 1 + plain, rows, sum(each.catch_up_seconds for each in rounds[first : last + 1]))

"""A drafter on other servers, as a `covey.contracts.ports.Drafter`.

    choose      Stay at the current place. Change if it is down, or so much slower that replaying the texts pays.
    send        Send the message, sealed with our secret. Repeat it once if no answer came and time is left: a place
                answers a message number twice with the same answer (`covey.wire.ledger`).
    or not      If no place serves, answer "decode plainly" and when to ask again.

A failed place gets no drafts until it has answered a question of the probing thread, so no draft waits for a dead
server. A place that was just chosen or restarted answers "stale" for unknown requests and is then sent them whole. None
of this changes texts: the target decides on every proposal.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from covey.contracts.errors import PortError, SettingError
from covey.contracts.profile import Profile
from covey.contracts.types import DrafterInfo, DraftReply, DraftWork, Ints
from covey.drafters.calls import plainly
from covey.process.private import private_text
from covey.star.callers import LEAST_SECRET, token_of
from covey.tritonio.grpc import GrpcModel, Tls, Unreachable
from covey.wire import codec
from covey.wire.ledger import MOST_TAGS
from covey_client.backoff import Backoff

log = logging.getLogger("covey.star")

INFO_SECONDS = 1.0  # for one question
SHARE = 0.8  # of a sender's patience, for the whole exchange
FIRST_PROBE, LONGEST_PROBE = 0.1, 1.0  # seconds between questions to a place that is down
LOOKS = 1.0  # seconds between questions to a place that is not the current one
HORIZON = 100  # calls within which a change of place must pay
MOST_SURPLUS = 4096  # most tokens that the drafter has and its target lacks: usually padding
LEAST = 0.002  # seconds per call that another place must save at least
REPLAY = 0.0002  # assumed seconds per token of a replayed text


class Model(Protocol):
    """A model on another server."""

    name: str

    def exchange(self, message: Ints, seconds: float) -> Ints: ...


@dataclass(slots=True, eq=False)
class Place:
    """The drafter of one server. After a failure it is down until it answers the probing thread."""

    model: Model
    backoff: Backoff  # of questions to it
    down: bool = True  # until it first answers
    problem: str = "was not asked yet"
    due: float = -math.inf  # time of the next question
    facts: DrafterInfo | None = None
    seconds: float = 0.0  # per level of a call, including queue and network
    frees: tuple[int, ...] = field(default=())  # of messages that it did not get


class RemoteDrafter:
    """Implements `covey.contracts.ports.Drafter`. One call at a time; `info` from any thread."""

    def __init__(
        self,
        models: Sequence[Model],
        token: int,
        *,
        name: str,
        vocab_size: int,
        deadline: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`deadline`: seconds for a call without its own. `vocab_size`: the target's."""
        self._places = [Place(model, Backoff(FIRST_PROBE, LONGEST_PROBE, now)) for model in models]
        self._at = self._places[0]
        self._token = token
        self._name = name
        self._vocab_size = vocab_size
        self._deadline = deadline
        self._now = now
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._look, name="remote-drafters", daemon=True)
        self._thread.start()

    def info(self) -> DrafterInfo:
        """Return the last known facts of the serving place; raises PortError if there is none."""
        place = self._at if not self._at.down else next((each for each in self._places if not each.down), self._at)
        if place.down:
            self._ask(place)
        if place.down or place.facts is None:
            raise PortError(f"{self._name}: {place.model.name} {place.problem}")
        vocab_size = min(place.facts.vocab_size, self._vocab_size or place.facts.vocab_size)
        return replace(place.facts, model=self._name, vocab_size=vocab_size, resident_bytes=0)

    def draft(self, work: DraftWork) -> DraftReply:
        now = self._now()
        place = self._choose(work)
        if place is None:
            for each in self._places:
                each.frees = (each.frees + work.frees)[-MOST_TAGS:]  # older tags have been evicted there by now
            return plainly(work, 0, 0.0, FIRST_PROBE)
        reply = self._send(place, work, now)
        levels = int(work.depth.max(initial=0))
        if levels:
            took = (self._now() - now - reply.catch_up_seconds) / levels
            place.seconds = took if not place.seconds else place.seconds + 0.1 * (took - place.seconds)
        return reply

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    # ---- one call ---------------------------------------------------------------------------------------------------

    def _choose(self, work: DraftWork) -> Place | None:
        serving = [each for each in self._places if not each.down]
        if not serving:
            return None
        best = min(serving, key=lambda each: each.seconds)
        if self._at in serving:
            levels = int(work.depth.max(initial=0))
            saved = levels * (self._at.seconds - best.seconds)
            replayed = REPLAY * float(work.keep.sum() + len(work.tokens))
            if saved <= LEAST + replayed / HORIZON:
                return self._at
        if best is not self._at:
            log.info("%s: now using %s", self._name, best.model.name)
        self._at = best
        return best

    def _send(self, place: Place, work: DraftWork, started: float) -> DraftReply:
        left = SHARE * (work.patience or self._deadline)
        frees, place.frees = place.frees, ()
        sent = replace(work, frees=frees + work.frees, patience=left, vocab_size=self._vocab_size)
        message = codec.encode(sent)
        codec.seal(message, self._token)
        try:
            try:
                answer = place.model.exchange(message, left)
            except Unreachable:
                left -= self._now() - started
                if left <= 0 or not work.sequence:
                    raise
                answer = place.model.exchange(message, left)
            reply = codec.decode_draft_reply(answer, len(work.tags))
            tokens = reply.trees.tokens
            if self._vocab_size and len(tokens) and int(tokens.max()) >= self._vocab_size:
                raise PortError(f"{place.model.name} drafts tokens outside the target's vocabulary")
        except Exception as error:  # any answer: a bad one costs only this call
            place.frees = frees
            self._fell(place, str(error))
            raise
        return reply

    def _fell(self, place: Place, problem: str) -> None:
        with self._wake:
            place.down, place.problem = True, problem
            place.due = self._now() + place.backoff.failed()
            self._wake.notify()

    # ---- the thread that looks --------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Ask places that are down until they answer, and unused ones how busy they are."""
        while True:
            with self._wake:
                asked = [each for each in self._places if each.down or each is not self._at]
                due = min((each.due for each in asked), default=math.inf)
                left = due - self._now()
                if self._closed:
                    return
                if left > 0:
                    self._wake.wait(None if math.isinf(left) else left)
                    continue
            self._ask(min(asked, key=lambda each: each.due))

    def _ask(self, place: Place) -> None:
        message = codec.pack(codec.INFO_REQUEST)
        codec.seal(message, self._token)
        try:
            started = self._now()
            facts = codec.decode_drafter_info(place.model.exchange(message, INFO_SECONDS))
            if self._vocab_size and facts.vocab_size > self._vocab_size + MOST_SURPLUS:
                raise PortError(f"its vocabulary has {facts.vocab_size} tokens, the target's {self._vocab_size}")
        except Exception as error:  # no answer may end this thread
            problem = str(error) if isinstance(error, PortError) else f"{type(error).__name__}: {error}"
            if not place.down or place.problem != problem:
                log.warning("%s: %s does not serve: %s", self._name, place.model.name, problem)
            with self._wake:
                place.down, place.problem = True, problem
                place.due = self._now() + place.backoff.failed()
            return
        if place.down:
            log.info("%s: %s serves", self._name, place.model.name)
        with self._wake:
            if place is not self._at or not place.seconds:
                way = self._now() - started
                place.seconds = facts.step_seconds + (facts.wait_seconds + way) / 4
            place.facts, place.down = facts, False
            place.backoff.succeeded()
            place.due = self._now() + LOOKS


def load(name: str, vocab_size: int, profile: Profile) -> RemoteDrafter:
    """Return the drafter of a repository entry, at the places that the profile names."""
    star = profile.star
    places = [entry.split("=", 1)[1] for entry in star.servers if entry.split("=", 1)[0] == name]
    if not places:
        raise SettingError(f"{name} has no place in star.servers: add {name}=HOST:PORT/MODEL")
    secret = private_text(star.secret).strip() if star.secret else ""
    if len(secret) < LEAST_SECRET:
        raise SettingError(f"{name}: star.secret must name a file with a secret of at least {LEAST_SECRET} characters")
    tls = Tls(star.root_certificates, star.certificate, star.private_key) if star.tls else None
    models = [GrpcModel(address, model, tls) for address, _, model in (place.rpartition("/") for place in places)]
    deadline = profile.speculation.draft_deadline_ms / 1000
    return RemoteDrafter(models, token_of(secret), name=name, vocab_size=vocab_size, deadline=deadline)

"""Reports of the orchestrator about itself: its facts, its planner's last decisions, its last rounds. They hold no user
data.

    facts          the target, the drafters and the limits
    decisions:N    the last N choices of the planner, explained
    memory         the drafters in memory, the size of the pool, and how long loads, unloads and resizes took
    load:NAME      lets the policy decide whether that drafter is in memory; answers like memory
    unload:NAME    keeps that drafter out of memory; answers like memory
    pin:NAME       keeps that drafter in memory; answers like memory
    rounds:N       the cost and yield of the rounds after number N, as far back as they are kept

Only a caller with the administrator's secret may load, unload or pin.
"""

from __future__ import annotations

import hmac
import json
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from covey.contracts.errors import BadField
from covey.contracts.profile import Profile
from covey.contracts.types import JsonDict, TargetInfo
from covey.loop.memory import Memory
from covey.loop.moves import Wish
from covey.requests.rounds import RoundRecord

ROUNDS = 4096  # kept: about twenty seconds of short ones
SECRET = "admin_secret"  # the parameter with the caller's secret
DECISIONS = 20  # reported if no number is given
ALLOWED = "facts, memory, decisions:N, rounds:N or, with the administrator's secret, load, unload or pin:DRAFTER"
WISHES = {"load": Wish.AUTO, "unload": Wish.OUT, "pin": Wish.PINNED}
PLAIN = ("rows", "decoding", "prefill_tokens", "trees", "drafted", "accepted", "emitted", "waiting", "running")
SECONDS = (
    *("plan_seconds", "draft_seconds", "verify_seconds", "pass_seconds", "commit_seconds"),
    "catch_up_seconds",
)


class Reports:
    """Owns the ring buffer of rounds."""

    def __init__(
        self,
        decisions: Callable[[int], Sequence[JsonDict]],
        info: TargetInfo,
        profile: Profile,
        states: Callable[[], Mapping[str, str]],
        memory: Memory,
        secret: str = "",
    ) -> None:
        """`decisions` returns the planner's last decisions, `states` the drafters' states by name. `secret` is the
        administrator's; without one, load, unload and pin are refused."""
        self._decided, self._states = decisions, states
        self._memory, self._secret = memory, secret
        self._policy = profile.speculation.policy
        self._rounds: deque[tuple[int, RoundRecord]] = deque(maxlen=ROUNDS)
        self._count = 0
        self._facts = {
            **{key: value for key, value in asdict(info).items() if key not in ("epoch", "folder", "identity")},
            "profile": profile.name,
            "policy": self._policy,
            "max_depth": profile.speculation.max_depth,
            "max_width": profile.speculation.width,
            "max_running": profile.scheduler.max_running,
            "token_budget": profile.scheduler.token_budget,
        }

    def round(self, record: RoundRecord) -> None:
        """Keep a round. The engine's thread calls it once a round."""
        self._count += 1
        self._rounds.append((self._count, record))

    def answer(self, question: str, secret: str = "") -> str:
        """Return the answer as JSON; `secret` is the caller's. Raises BadField. Any thread may call it."""
        action, _, named = question.partition(":")
        if action in WISHES:
            self._wish(named, WISHES[action], secret)
            question = "memory"
        match = re.fullmatch(r"(facts|memory|decisions|rounds)(?::(\d{1,15}))?", question)
        if not match or (match[1] in ("facts", "memory") and match[2]):
            raise BadField("inspect", question, ALLOWED)
        kind, number = match[1], match[2]
        if kind == "memory":
            told = self._memory.report()
        elif kind == "decisions":
            told = {"policy": self._policy, "decisions": self._decided(int(number or DECISIONS))}
        else:
            told = self._facts_now() if kind == "facts" else self._after(int(number or 0))
        return json.dumps(told, allow_nan=False)

    def _wish(self, drafter: str, wish: Wish, secret: str) -> None:
        if not self._secret or not hmac.compare_digest(secret.encode(), self._secret.encode()):
            raise BadField(SECRET, "another", "the administrator's secret of this server")
        names = self._states()
        if drafter not in names:
            raise BadField("drafter", drafter, ", ".join(names) or "this server has no drafters")
        self._memory.wish(drafter, wish)

    def _facts_now(self) -> JsonDict:
        """Return the facts, with the drafters' states and the size of the pool in the last round."""
        states = self._states()
        now: JsonDict = {"drafters": tuple(states), "states": dict(states)}
        return self._facts | now | ({"total_blocks": self._rounds[-1][1].total_blocks} if self._rounds else {})

    def _after(self, number: int) -> JsonDict:
        rounds = [(at, record) for at, record in list(self._rounds) if at > number]
        return {"last": rounds[-1][0] if rounds else self._count, "rounds": [_plain(*each) for each in rounds]}


def _plain(number: int, record: RoundRecord) -> JsonDict:
    return {"round": number} | {name: getattr(record, name) for name in (*PLAIN, *SECONDS)}

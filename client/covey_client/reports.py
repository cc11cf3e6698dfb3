"""Reads the reports of the model `covey` about itself over HTTP: its limits, last decisions and last rounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from covey_client import secret as secrets
from covey_client.address import Address
from covey_client.asking import ask
from covey_client.errors import ServerError, from_message
from covey_client.wire import MODEL

T = TypeVar("T")
SECONDS = 30.0


@dataclass(frozen=True)
class ServerFacts:
    """The model that is served, its drafters, and the largest tree that they draft."""

    model: str
    device: str
    dtype: str
    numerics: str
    profile: str
    drafters: Sequence[str]
    max_depth: int
    max_width: int


@dataclass(frozen=True)
class RoundReport:
    """The cost and the yield of one round. `draft_seconds` includes `catch_up_seconds`, and `verify_seconds` includes
    `pass_seconds`, which the target itself took."""

    round: int
    rows: int
    decoding: int
    prefill_tokens: int
    trees: int
    drafted: int
    plan_seconds: float
    draft_seconds: float
    verify_seconds: float
    pass_seconds: float
    commit_seconds: float
    catch_up_seconds: float
    waiting: int  # requests left, in the queue and in the batch
    running: int

    @property
    def idle(self) -> bool:
        """Return whether the round was the last one before there was nothing more to do."""
        return self.waiting + self.running == 0


class Reports:
    """Reads the reports of one server."""

    def __init__(self, http_url: str, *, model: str = MODEL) -> None:
        self._address = Address.parse(http_url, port=8000)
        self._path = f"/v2/models/{model}/generate"

    def facts(self) -> ServerFacts:
        return _made(ServerFacts, self._ask("facts"))

    def decisions(self, count: int) -> dict[str, Any]:
        """Return the policy's name and its last choices, the oldest first; `line` of each is for people."""
        return self._ask(f"decisions:{count}")

    def rounds(self, after: int) -> list[RoundReport]:
        """Return the rounds with a higher number, the oldest first, as far back as the server keeps them."""
        return [_made(RoundReport, found) for found in self._ask(f"rounds:{after}")["rounds"]]

    def memory(self) -> dict[str, Any]:
        """Return which drafters are in memory, and how large the KV pool is."""
        return self._ask("memory")

    def wish(self, action: str, drafter: str, secret: str = "") -> dict[str, Any]:
        """Load, unload or pin a drafter (`load`, `unload`, `pin`) as administrator; returns the new state. `secret` is
        by default COVEY_ADMIN_SECRET's, or the one that a server of this user and machine keeps."""
        return self._ask(f"{action}:{drafter}", admin_secret=secret or secrets.found(self._address))

    def last_round(self) -> int:
        """Return the number of the last round."""
        return int(self._ask(f"rounds:{10**15 - 1}")["last"])

    def _ask(self, question: str, **parameters: str) -> dict[str, Any]:
        body = json.dumps({"inspect": question, **parameters}).encode()
        status, answer = ask(self._address, "POST", self._path, headers={}, seconds=SECONDS, body=body)
        try:
            found = json.loads(answer)
            if status != 200:
                raise from_message(str(found["error"]), status)
            told: dict[str, Any] = json.loads(found["report"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ServerError(f"{self._address.target} does not answer as Covey does: {answer[:200]!r}") from None
        return told


def _made(kind: type[T], found: dict[str, Any]) -> T:
    return kind(**{field.name: found[field.name] for field in fields(kind)})  # type: ignore[arg-type]  # a dataclass

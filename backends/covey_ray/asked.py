"""The message from the ingress to a replica, and the first one that comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import RayActorError

BEAT_SECONDS = 2.0  # of silence, after which a replica sends an empty piece
SILENT_SECONDS = 10.0  # of complete silence, after which a replica counts as lost
LONGEST = 8192  # characters of a prompt that routing looks at
SESSION = "x-session-id"  # Serve's own header for sessions
HEALTH = "/health"  # of every engine
FORWARDED = ("accept", "authorization", "content-type")


class Lost(Exception):
    """A server stopped before the end of an answer, or before its beginning."""

    def __init__(self, reason: str, replica: str = "") -> None:
        super().__init__(reason, replica)  # these arguments recreate it in another process
        self.replica = replica

    def __str__(self) -> str:
        return str(self.args[0])


class Another(Exception):
    """The replica may write other texts than the one that began the answer."""


# Raised when the replica of an answer, or its node, is lost or silent.
BROKEN = (RayActorError, Lost, asyncio.TimeoutError)


@dataclass(frozen=True)
class Asked:
    """An HTTP request on its way to a replica."""

    prompt: str  # routing key; Ray's router expects this name; never empty
    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    identity: str = ""  # of the replica that began the answer; "": any replica may answer
    avoid: frozenset[str] = frozenset()  # replicas that could not answer


@dataclass(frozen=True)
class Head:
    """The message before an answer's bytes."""

    replica: str
    identity: str
    status: int
    headers: Mapping[str, str]


def routed_by(body: Mapping[str, Any], headers: Mapping[str, str], path: str) -> str:
    """Return a key that requests for the same replica share: their session if they name one, else the beginning of
    their prompt. The tenant is part of the key, because tenants share no KV."""
    if session := headers.get(SESSION):
        return f"session {session}"
    prompt, messages = body.get("prompt") or body.get("input"), body.get("messages")
    if isinstance(messages, list):
        texts = [each.get("content") for each in messages if isinstance(each, dict)]
        text = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in texts)
    else:
        text = prompt if isinstance(prompt, str) else json.dumps(prompt)
    return f"{body.get('tenant') or ''}\n{text[:LONGEST]}" if prompt or messages else path

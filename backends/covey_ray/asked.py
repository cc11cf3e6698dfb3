"""The messages from the ingress to a replica, and the first that comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import RayActorError

BEAT_SECONDS = 2.0  # of silence, after which a replica says that it is still there
SILENT_SECONDS = 10.0  # of a replica that does not even say that, after which it counts as lost
LONGEST = 8192  # characters of a prompt by which it is routed
SESSION = "x-session-id"  # Serve's own header for it
HEALTH = "/health"  # of every engine
FORWARDED = ("accept", "authorization", "content-type")


class Lost(Exception):
    """A server ended an answer before its end, or before its beginning."""

    def __init__(self, reason: str, replica: str = "") -> None:
        super().__init__(reason, replica)  # as another process makes it again
        self.replica = replica

    def __str__(self) -> str:
        return str(self.args[0])


class Another(Exception):
    """The replica's texts may be others than those of the one that began the answer."""


# What becomes of an answer whose replica, or its node, is no more, or says nothing.
BROKEN = (RayActorError, Lost, asyncio.TimeoutError)


@dataclass(frozen=True)
class Asked:
    """An HTTP request on its way to a replica."""

    prompt: str  # the name by which Ray's router finds what to route by; never empty
    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    identity: str = ""  # of the replica that began the answer; "": anyone may answer
    avoid: frozenset[str] = frozenset()  # replicas that could not


@dataclass(frozen=True)
class Head:
    """The message before the bytes of an answer."""

    replica: str
    identity: str
    status: int
    headers: Mapping[str, str]


def routed_by(body: Mapping[str, Any], headers: Mapping[str, str], path: str) -> str:
    """Return what requests for the same replica have in common: their session where they name one, else how their
    prompts begin. Tenants share no KV, so their prompts are none of each other's."""
    if session := headers.get(SESSION):
        return f"session {session}"
    prompt, messages = body.get("prompt") or body.get("input"), body.get("messages")
    if isinstance(messages, list):
        texts = [each.get("content") for each in messages if isinstance(each, dict)]
        text = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in texts)
    else:
        text = prompt if isinstance(prompt, str) else json.dumps(prompt)
    return f"{body.get('tenant') or ''}\n{text[:LONGEST]}" if prompt or messages else path

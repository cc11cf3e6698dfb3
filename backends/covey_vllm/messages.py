"""The messages between the public model and vLLM's process, as `covey.wire.frames` has them.

    to vLLM's process                                   from it
    load     the deployment                             loaded   facts of the engine
    submit   a request; the exchange is its key         failed   why it cannot load
    cancel   it is wanted no more                       step     what a step brought, all requests in one message
                                                        refused  why vLLM does not take a request
                                                        news     rounds, decisions, figures since the last

Imports nothing of vLLM: both ends read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import NamedTuple

from covey.contracts.types import Finish, JsonDict, Request
from covey.wire.frames import Message

LOAD, LOADED, FAILED = "load", "loaded", "failed"
SUBMIT, CANCEL, STEP, REFUSED, NEWS = "submit", "cancel", "step", "refused", "news"


def submit(request: Request) -> Message:
    """Return a request's message: all that vLLM has a place for; `covey_vllm.serving.fields` has refused the rest."""
    wanted = {
        "max_tokens": request.max_tokens,
        "priority": request.priority,
        "tenant": request.tenant,
        "speculation": request.speculation,
        "drafter": request.drafter,
        "sampling": asdict(request.sampling),
    }
    return Message(request.key, SUBMIT, wanted, {"prompt": request.prompt})


class Brought(NamedTuple):
    """The result of a step for one request. For each token `top` has as many of the likeliest, as (id,
    log-probability)."""

    key: int
    tokens: Sequence[int]
    logprobs: Sequence[float] = ()
    top: Sequence[Sequence[tuple[int, float]]] = ()
    finish: Finish | None = None
    reused: int = 0
    queued: float | None = None
    drafts: JsonDict | None = None  # of the request so far


def step(found: Sequence[Brought]) -> Message:
    return Message(0, STEP, found)


def results(message: Message) -> list[Brought]:
    """Return what a message that `step` made says."""
    found = [Brought(*each) for each in message.value]
    return [each if each.finish is None else each._replace(finish=Finish(each.finish)) for each in found]

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

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from covey.contracts.types import Finish, JsonDict, Request, Top
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


@dataclass(slots=True)
class Brought:
    """The result of a step for one request. For each token `top` has as many of the likeliest, as (id,
    log-probability)."""

    key: int
    tokens: Sequence[int]
    logprobs: Sequence[float] = ()
    top: Sequence[Sequence[tuple[int, float]]] = ()
    finish: Finish | None = None
    reused: int = 0
    queued: float | None = None
    drafts: JsonDict = field(default_factory=dict)  # of the request so far


def step(found: Sequence[Brought]) -> Message:
    """The arrays have all requests' tokens, one behind the other."""
    rows = [
        (
            *(each.key, len(each.tokens), len(each.logprobs), len(each.top[0]) if each.top else 0),
            *(each.finish, each.reused, each.queued, each.drafts),
        )
        for each in found
    ]
    top = [pair for each in found for place in each.top for pair in place]
    arrays = {
        "tokens": _array((token for each in found for token in each.tokens), np.int32),
        "logprobs": _array((score for each in found for score in each.logprobs), np.float32),
        "top_ids": _array((token for token, _ in top), np.int32),
        "top_logprobs": _array((score for _, score in top), np.float32),
    }
    return Message(0, STEP, rows, arrays)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step brought one request, as `step` told it."""

    key: int
    tokens: Any
    logprobs: Any
    top: Top
    finish: Finish | None
    reused: int
    queued: float | None
    drafts: JsonDict


def results(message: Message) -> list[StepResult]:
    """Return what a message that `step` made says."""
    arrays, found = message.arrays, []
    at = scored = topped = 0
    for key, count, scores, width, finish, reused, queued, drafts in message.value:
        tokens = arrays["tokens"][at : at + count]
        top = [arrays[name][topped : topped + count * width].reshape(count, width) for name in TOP]
        logprobs = arrays["logprobs"][scored : scored + scores]
        ended = None if finish is None else Finish(finish)
        found.append(StepResult(key, tokens, logprobs, Top(*top), ended, reused, queued, drafts))
        at, scored, topped = at + count, scored + scores, topped + count * width
    return found


TOP = ("top_ids", "top_logprobs")


def _array(values: Iterable[Any], kind: Any) -> Any:
    return np.fromiter(values, kind)

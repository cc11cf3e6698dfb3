"""Parsers of requests, and requests as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from covey.contracts.profile import LimitSettings
from covey.contracts.types import TargetInfo
from covey.requests.roster import Roster
from covey.tritonio.fields import RequestParser
from tests.fakes import HashTarget, ManualClock

INFO = HashTarget().info()


def parser(
    info: TargetInfo = INFO,
    tokenizer: Any = None,
    limits: LimitSettings | None = None,
    drafters: Sequence[str] = (),
    **more: Any,
) -> RequestParser:
    return RequestParser(tokenizer, info, limits or LimitSettings(), Roster(drafters, ManualClock()), **more)


def text(*values: str | bytes) -> Any:
    """A tensor of texts."""
    return np.array([value.encode() if isinstance(value, str) else value for value in values], np.object_)


def ids(*values: int) -> dict[str, Any]:
    """A prompt of these tokens."""
    return {"input_ids": np.array(values, np.int32)}

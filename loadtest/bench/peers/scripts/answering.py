"""The far end of the bench's pipe: calls come in as lines of JSON, and each is answered with one.

Runs under any Python and imports nothing of Covey, which a peer's environment does not have.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

Method = Callable[..., "dict[str, Any]"]


def answer(methods: Mapping[str, Method]) -> None:
    """Answer calls until the pipe is closed. An exception is also an answer; the output of libraries goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        call = json.loads(line)
        started = time.perf_counter()
        try:
            found = methods[call.pop("call")](**call)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps({"seconds": time.perf_counter() - started, **found}) + "\n")
        answers.flush()

"""Ends a model's process as soon as Triton has let go of it."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

PROCESS = Path("/proc/self/exe")
STUB = "triton_python_backend_stub"


def at_once() -> None:
    """Have this process end as soon as Triton has let go of it, when all that is registered later has run: taking an
    interpreter apart that has torch and transformers takes a second. Does nothing in a process that is not a model's
    own."""
    if PROCESS.readlink().name == STUB:
        atexit.register(os._exit, 0)

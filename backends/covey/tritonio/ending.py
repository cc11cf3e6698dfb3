"""Ends a model's process as soon as Triton releases it."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

PROCESS = Path("/proc/self/exe")
STUB = "triton_python_backend_stub"


def at_once() -> None:
    """Have this process exit when Triton releases it, after all exit handlers that are registered later. A normal
    shutdown of an interpreter with torch and transformers takes a second. Only affects a model's own process."""
    if PROCESS.readlink().name == STUB:
        atexit.register(os._exit, 0)

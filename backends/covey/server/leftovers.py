"""Removes temporary folders that killed processes of this user's servers have left."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from covey.care import processes

ENVIRONMENTS = "python_env_*"  # Triton makes one for each of its backends, in /tmp whatever TMPDIR says


def sweep(triton: Path = Path("/tmp")) -> None:
    """Remove them. Nothing says whose an environment is, so all stay while this user has a tritonserver; only empty
    ones, as Covey's models leave, are removed."""
    environments = list(_own(triton, ENVIRONMENTS))  # before the look: who makes one later is not looked at
    if not processes.called(processes.SERVER):
        for path in environments:
            with contextlib.suppress(OSError):
                path.rmdir()


def _own(folder: Path, pattern: str) -> Iterator[Path]:
    for path in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_uid == os.getuid():
                yield path

"""Removes temporary folders that killed processes of this user's servers have left."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from covey.care import processes

RANKS = "covey-ranks-*"  # covey.models.parallel makes them, named by their process


def sweep() -> None:
    """Remove the folders of ranks whose process has ended."""
    for path in Path(tempfile.gettempdir()).glob(RANKS):
        pid = path.name.split("-")[2]
        with contextlib.suppress(FileNotFoundError):
            if path.lstat().st_uid == os.getuid() and pid.isdigit() and not processes.lives(int(pid)):
                shutil.rmtree(path, ignore_errors=True)

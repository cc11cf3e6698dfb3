"""Tells how to start another Python process, even from a program that embeds Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path


def python() -> str:
    """Return the path of this interpreter, or of the installed one if another program embeds Python."""
    own = Path(sys.executable or "")
    return str(own if own.name.startswith("python") else Path(sys.prefix) / "bin" / "python3")


def environment(without: Iterable[str] = ()) -> dict[str, str]:
    """Return an environment for it, without these variables and COVEY_ ones, which may hold secrets."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVEY_") and name not in without}
    paths = [str(Path(__file__).parents[2]), kept.get("PYTHONPATH", "")]
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}

"""Says how a process of ours starts another one that runs Python, also where it is no Python interpreter itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path


def python() -> str:
    """Return this interpreter; where another program embeds it, the one that it was taken from."""
    own = Path(sys.executable or "")
    return str(own if own.name.startswith("python") else Path(sys.prefix) / "bin" / "python3")


def environment(without: Iterable[str] = ()) -> dict[str, str]:
    """Return our environment, but for secrets and these variables; `covey` is found as here."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVEY_") and name not in without}
    paths = [str(Path(__file__).parents[2]), kept.get("PYTHONPATH", "")]
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}

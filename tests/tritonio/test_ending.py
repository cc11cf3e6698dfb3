"""A model's process ends at once, and no other process does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ENDS = """
import atexit, sys
from pathlib import Path
from covey.tritonio import ending
ending.PROCESS = Path(sys.argv[1])
atexit.register(print, "never")
ending.at_once()
atexit.register(print, "said", flush=True)
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("name", "status", "said"), [("triton_python_backend_stub", 0, "said"), ("python", 3, "said never")]
)
def test_who_ends_at_once(name: str, status: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "exe").symlink_to(tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path / "exe")], check=False, capture_output=True, text=True
    )
    assert done.returncode == status
    assert done.stdout.split() == said.split()

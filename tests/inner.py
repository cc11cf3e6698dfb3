"""Tests within a test: pytest in a process of its own, over tests that are given as text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTCOMES = ("PASSED", "FAILED", "ERROR")


def outcomes(folder: Path, tests: str, plugin: str) -> tuple[set[tuple[str, str]], str]:
    """Run the tests with a plugin of ours. Returns each one's name with its outcomes, and what was said."""
    (folder / "test_these.py").write_text(tests)
    words = ["-m", "pytest", "-p", plugin, "-p", "no:cacheprovider", "-c", "pyproject.toml", "-rA"]
    ran = subprocess.run(
        [sys.executable, *words, "--rootdir", str(folder), str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    told = (line for line in ran.stdout.splitlines() if line.startswith(OUTCOMES))
    return {(line.split("::")[1].split(" ")[0], line.split(" ")[0]) for line in told}, ran.stdout

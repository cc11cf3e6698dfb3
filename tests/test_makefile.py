"""`make setup` and `make test`, with a Python that only tells what it is asked for: what pip would fetch is not fetched
here, and no tests run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
case "$*" in
*version_info\\[:2\\]*) echo {version};;
*"-m venv "*) mkdir -p .venv/bin && cp "$0" .venv/bin/python;;
*"-m pip "*) echo "pip: $*";;
*"-m pytest "*"$FAILING"*) echo "failed: $*"; exit 1;;
*"-m pytest "*) sleep 0.2; echo "passed: $*";;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for version in ("3.11", "3.12"):
        made = tmp_path / f"python{version}"
        made.write_text(PYTHON.format(version=version))
        made.chmod(0o755)
    return tmp_path


def setup(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return make(clone, "setup", *words)


def make(clone: Path, *words: str, failing: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"FAILING": failing}
    command = ["make", *words]
    return subprocess.run(command, cwd=clone, env=environment, check=False, capture_output=True, text=True, timeout=60)


def test_pip_says_what_it_does(clone: Path) -> None:
    (line,) = (line for line in setup(clone, "PYTHON=./python3.11").stdout.splitlines() if line.startswith("pip:"))
    assert "install" in line.split()
    assert not {"-q", "--quiet"} & set(line.split())


def test_another_python_after_setup_is_refused(clone: Path) -> None:
    assert setup(clone, "PYTHON=./python3.11").returncode == 0
    assert setup(clone, "PYTHON=./python3.11").returncode == 0
    assert setup(clone).returncode == 0, "whatever python3 is: none was asked for"
    other = setup(clone, "PYTHON=./python3.12")
    assert other.returncode != 0
    assert ".venv has Python 3.11, ./python3.12 is 3.12: rm -r .venv" in other.stderr
    assert setup(clone, "PYTHON=./python3.9").returncode != 0


@pytest.mark.parametrize("target", ["test", "test-all"])
def test_a_failure_of_either_run_counts_and_the_other_goes_on(clone: Path, target: str) -> None:
    chosen = {"units": "not slow and not e2e", "servers": "not slow and e2e"}
    if target == "test-all":
        chosen = {"units": "-m not e2e", "servers": "-m e2e"}
    assert setup(clone, "PYTHON=./python3.11").returncode == 0
    for failing in ("no such tests", *chosen.values()):
        ran = make(clone, target, failing=failing)
        assert (ran.returncode == 0) == (failing not in chosen.values()), ran.stderr
        for run, tests in chosen.items():
            outcome = "failed" if tests == failing else "passed"
            (said,) = (line for line in ran.stdout.splitlines() if line.startswith(f"{run}: "))
            assert said.startswith(f"{run}: {outcome}: ")
            assert tests in said

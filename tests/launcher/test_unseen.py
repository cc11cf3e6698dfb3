"""What a program is told so that only its own user can read it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from covey.launcher import unseen

SECRET = "5f3a"
SAYS = "import sys; print(sys.argv[1:], flush=True); sys.stdin.read()"
WORDS = [sys.executable, "-I", "-c", SAYS, "--plain=1", f"--http=a,b:key={SECRET}", "--last", f"--grpc={SECRET}"]


def nothing() -> None:
    """What else is to be done in the child."""


def told(preexec_fn: Callable[[], None] = nothing, **settings: Any) -> tuple[str, str]:
    """What the program was told, and what everybody sees of it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environment = os.environ | {"UNSEEN_1": "somebody else's", "UNSEEN_x": "-"}
    with unseen.start(WORDS, SECRET, environment, preexec_fn, **pipes, **settings) as process:
        assert process.stdout is not None
        got = process.stdout.readline().decode()
        seen = Path(f"/proc/{process.pid}/cmdline").read_text()
        process.communicate()
    assert process.returncode == 0
    return got, seen


def test_a_program_reads_what_others_do_not_see() -> None:
    got, seen = told()
    assert got == f"{WORDS[4:]!r}\n"
    assert SECRET not in seen
    assert seen.split("\0")[4:8] == ["--plain=1", "--http=unseen", "--last", "--grpc=unseen"]


def test_what_else_the_child_does_is_done_and_the_program_is_not_traced_any_more(tmp_path: Path) -> None:
    got, seen = told(lambda: os.chdir(tmp_path), start_new_session=True)
    assert SECRET in got
    assert SECRET not in seen
    with unseen.start(["/bin/sleep", "60"], "60", dict(os.environ), nothing) as process:
        assert "TracerPid:\t0" in Path(f"/proc/{process.pid}/status").read_text()
        process.kill()


def fails(_pid: int, _hidden: dict[int, str]) -> None:
    raise OSError("no /proc")


@pytest.mark.parametrize(
    ("part", "instead", "said"),
    [("_TRACED_BY_PARENT", -1, "can read the secret on the command line"), ("_point", fails, "no /proc")],
    ids=["nothing can be traced", "nothing can be changed"],
)
def test_where_the_secret_cannot_be_hidden_it_is_seen_and_the_log_says_so(
    part: str, instead: object, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unseen, part, instead)
    with caplog.at_level(logging.WARNING):
        got, seen = told()
    assert got == f"{WORDS[4:]!r}\n"
    assert f"--grpc={SECRET}" in seen.split("\0")
    assert said in caplog.text

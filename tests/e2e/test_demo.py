"""`make demo` in short: its pictures, its verdict on texts, and what is left of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import covey
from covey.types import JsonDict
from loadtest.bench.report import Panel
from loadtest.demo import __main__ as demo
from loadtest.demo.stage import Stage
from loadtest.demo.steps import Shown

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

REPOSITORY = Path(covey.__file__).parents[2]
MARK = "COVEY_TEST_OF_DEMO"  # in the environment of all that a run starts
PNG = b"\x89PNG\r\n\x1a\n"


def start(out: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "loadtest.demo", "--quick", "--out", str(out), *words],
        cwd=REPOSITORY,
        env=os.environ | {MARK: str(out)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def left(out: Path) -> list[str]:
    return [
        process.info["name"]
        for process in psutil.process_iter(["name", "environ"])
        if (process.info["environ"] or {}).get(MARK) == str(out)
    ]


def found(out: Path) -> JsonDict:
    return json.loads((out / "demo.json").read_text())  # type: ignore[no-any-return]


def test_every_step_is_drawn_and_no_text_differs(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        shown, said = process.communicate(timeout=800)
    assert process.returncode == 0, said
    assert shown.split() == [str(tmp_path / "index.html")]
    page, steps = (tmp_path / "index.html").read_text(encoding="utf-8"), found(tmp_path)["steps"]
    assert list(steps) == list(demo.STEPS)
    for name, step in steps.items():
        assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)
        assert step["answers"] > 10
        assert step["differ"] == 0
        assert f"{name}: {step['sentence']}" in said
        assert step["command"] in page
    assert page.count("data:image/png;base64,") == len(steps)
    assert left(tmp_path) == []


def test_ctrl_c_ends_it_with_what_is_drawn(tmp_path: Path) -> None:
    with start(tmp_path, "urgent", "memory") as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("memory: 2 callers"))
        assert left(tmp_path)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert list(found(tmp_path)["steps"]) == ["urgent"]
    assert (tmp_path / "index.html").read_text(encoding="utf-8").count("data:image/png;base64,") == 1
    assert left(tmp_path) == []


def test_a_text_that_differs_fails_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rejection rule keeps the distribution alone: with drafts its texts are other ones."""

    def play(stage: Stage) -> Shown:
        with stage.asking(2, stage.ask("code", verification="rejection", speculation="fixed:4")):
            stage.wait("asked", 5)
        return Shown("Texts differ.", [Panel("none", "", "", {"none": [(0.0, 0.0)]})])

    monkeypatch.setitem(demo.STEPS, "memory", demo.Step("By the rejection rule", demo.SMALL, play))
    assert demo.main(["--out", str(tmp_path), "memory"]) == 1
    step = found(tmp_path)["steps"]["memory"]
    assert 0 < step["differ"] <= step["answers"]

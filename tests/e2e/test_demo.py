"""`make demo` in short: its pictures, its verdict on texts, and what is left of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import covey
from covey.contracts.types import JsonDict
from loadtest.charts import Chart
from loadtest.demo import __main__ as demo
from loadtest.demo.stage import Stage
from loadtest.demo.steps import Shown

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

REPOSITORY = Path(covey.__file__).parents[2]
MARK = "COVEY_TEST_OF_DEMO"  # in the environment of all that a run starts


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
        assert step["answers"] > (4 if name == "answer" else 10)
        assert step["differ"] == 0
        assert f"{name}: {step['sentence']}" in said
        assert step["command"] in page
    assert page.count("<svg") == 2 * (len(steps) - 1)
    assert page.count('class="replay" data-sides') == 2
    assert (tmp_path / "code.png").read_bytes().startswith(b"\x89PNG")
    waiting, urgent = map(int, re.findall(r"after (\d+) ms", steps["urgent"]["sentence"]))
    assert urgent < waiting
    assert left(tmp_path) == []


def test_ctrl_c_ends_it_with_what_is_drawn(tmp_path: Path) -> None:
    with start(tmp_path, "depth", "urgent") as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("urgent: 32 long"))
        assert left(tmp_path)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert list(found(tmp_path)["steps"]) == ["depth"]
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2
    assert "The run was interrupted." in page
    assert left(tmp_path) == []


def test_a_step_that_fails_leaves_those_before_it_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def drawn(stage: Stage) -> Shown:
        with stage.asking(1, stage.ask("code")):
            stage.wait("asked", 0, lambda _: bool(stage.answers))
        return Shown("All is well.", [Chart("none", "", {"none": [(0.0, 0.0)]})])

    def unforeseen(stage: Stage) -> Shown:
        with stage.asking(1, stage.ask("code")):
            raise LookupError("nobody <there>")

    for name, play in (("depth", drawn), ("urgent", unforeseen), ("death", drawn)):
        monkeypatch.setitem(demo.STEPS, name, demo.Step(f"Of {name}", demo.BUNDLED, play))
    assert demo.main(["--out", str(tmp_path), "depth", "urgent", "death"]) == 1
    said, page = capsys.readouterr(), (tmp_path / "index.html").read_text(encoding="utf-8")
    result = found(tmp_path)
    assert result["ended"] == "The run ended early. Step urgent: LookupError: nobody <there>"
    assert list(result["steps"]) == ["depth"]
    assert f"demo: {result['ended']}" in said.err
    assert "Traceback" in said.err, "nobody foresaw it"
    assert said.out.strip() == str(tmp_path / "index.html")
    assert page.count("<svg") == 1
    assert "Of depth" in page
    assert "Step urgent: LookupError: nobody &lt;there&gt;" in page


def test_what_never_comes_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtest.demo.stage.PATIENCE", 1.0)
    monkeypatch.setitem(
        demo.STEPS, "death", demo.Step("Never", demo.BUNDLED, lambda stage: stage.wait("a call", 0, lambda _: False))
    )
    assert demo.main(["--out", str(tmp_path), "death"]) == 1
    assert found(tmp_path)["ended"] == "The run ended early. Step death: no effect of 'a call' was seen within 1 s"
    assert found(tmp_path)["steps"] == {}


def test_a_text_that_differs_fails_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rejection rule keeps the distribution alone: with drafts its texts are other ones."""

    def play(stage: Stage) -> Shown:
        with stage.asking(2, stage.ask("code", verification="rejection", speculation="fixed:4")):
            stage.wait("asked", 5)
        return Shown("Texts differ.", [Chart("none", "", {"none": [(0.0, 0.0)]})])

    monkeypatch.setitem(demo.STEPS, "death", demo.Step("By the rejection rule", demo.BUNDLED, play))
    assert demo.main(["--out", str(tmp_path), "death"]) == 1
    step = found(tmp_path)["steps"]["death"]
    assert 0 < step["differ"] <= step["answers"]

"""The bench `engine` beside a stub of vLLM: who takes part, what is asked of everybody, and the keys."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from covey.contracts.errors import SettingError
from loadtest.bench import engine
from loadtest.bench.session import QUICK, Session, Wanted

STUB = """
import json, sys
for line in sys.stdin:
    call = json.loads(line)
    method = (call.get("speculative") or {}).get("method")
    if call["call"] == "open":
        found = {"version": "1", "seconds": 0.0}
        assert method != "custom_class" or "covey" in call["policies"]
        if method == "suffix":
            found = {"error": "it is not installed"}
    else:
        asked = [call["policy"], call["callers"], call["temperature"], call["prompts"]]
        open(sys.argv[0] + ".asked", "a").write(json.dumps(asked) + "\\n")
        tokens = [[7] * length for length in call["lengths"]]
        seconds = 1.0 if call["policy"] == "covey" else 2.0
        spent = [0.5, 0.7, 0.9] if call["policy"] == "covey" else []
        found = {"tokens": tokens, "seconds": seconds, "call_ms": spent, "draft_ms": [2 * each for each in spent]}
    print(json.dumps(found), flush=True)
"""


def measured(folder: Path, monkeypatch: pytest.MonkeyPatch, *parts: str, repetitions: int = 2) -> dict[str, object]:
    script = folder / "stub.py"
    script.write_text(STUB)
    monkeypatch.setattr(engine, "SCRIPT", script)
    wanted = Wanted(folder / "out.json", QUICK, peers=(f"vllm={sys.executable}",), repetitions=repetitions, parts=parts)
    session = Session("engine", wanted, Console(quiet=True))
    engine.run(session)
    found = session.write()
    engine.show(found, Console(quiet=True), folder / "out.png")
    return found


def test_everybody_answers_the_same_requests_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(tmp_path, monkeypatch, "1", "waves", "32 t1")
    names = {"vllm plain", "vllm ngram", "vllm draft model", "in vllm off", "in vllm fixed:2", "in vllm fixed:6"}
    rates = found["tokens_per_second"]
    assert isinstance(rates, dict)
    assert list(rates) == ["1", "waves", "32 t1"]
    assert set(rates["waves"]) == names | {"in vllm covey", "in vllm lookups alone"}
    for key in ("covey_over_plain", "covey_over_best_static"):
        ratios = found[key]
        assert isinstance(ratios, dict)
        assert ratios["waves"]["median"] == pytest.approx(2.0)
        assert not any("lookups" in name for name in ratios["waves"]["over"])
    assert [found[key]["1"] for key in ("call_ms", "draft_ms")] == [  # type: ignore[index]
        {"in vllm covey": 0.7},
        {"in vllm covey": 1.4},
    ]
    assert (found["turns"], found["vllm"], list(found["left_out"])) == (2, "1", ["vllm suffix"])  # type: ignore[call-overload]
    asked = [json.loads(line) for line in (tmp_path / "stub.py.asked").read_text().splitlines()]
    assert len(asked) == 3 * 3 * 8  # one turn warms up
    assert {str(callers) for _, callers, _, _ in asked} == {"[[1, 2]]", "[[32, 32]]", "[[1, 1], [4, 4], [1, 1]]"}
    assert {temperature for _, callers, temperature, _ in asked if callers == [[32, 32]]} == {1.0}
    prompts = {str(prompts) for _, callers, _, prompts in asked if callers == [[1, 2]]}
    assert len(prompts) == 3, "of each turn other ones, the same for all"


def test_no_request_comes_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(tmp_path, monkeypatch, "32", repetitions=3)
    asked = [json.loads(line) for line in (tmp_path / "stub.py.asked").read_text().splitlines()]
    prompts = {tuple(prompt) for policy, _, _, prompts in asked if policy == "off" for prompt in prompts}
    assert len(prompts) == 4 * 32


def test_learners_are_warm_when_they_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "QUICK", "no such size")
    monkeypatch.setattr(engine, "SHAPES", engine.QUICK_SHAPES)
    measured(tmp_path, monkeypatch, "1", repetitions=1)
    asked = [json.loads(line)[0] for line in (tmp_path / "stub.py.asked").read_text().splitlines()]
    assert (asked.count("covey"), asked.count("off")) == (engine.WARM_UP + 1, 2)


def test_what_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="vllm=PYTHON"):
        engine.run(Session("engine", Wanted(tmp_path / "out.json"), Console(quiet=True)))
    with pytest.raises(SettingError, match="--part: got '8', allowed: 1, 32, waves"):
        measured(tmp_path, monkeypatch, "8")

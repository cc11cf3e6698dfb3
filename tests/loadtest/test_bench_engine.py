"""The bench `engine` beside a stub of vLLM: who takes part, what is asked of everybody, and the keys."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from rich.console import Console

from covey.errors import SettingError
from loadtest.bench import engine
from loadtest.bench.session import QUICK, Session, Wanted

STUB = """
import json, sys
calls = []
for line in sys.stdin:
    call = json.loads(line)
    if call["call"] == "load":
        found = {"version": "1", "seconds": 0.0}
        assert (call["speculative"] or {}).get("method") != "custom_class" or "covey" in call["policies"]
    else:
        open(sys.argv[0] + ".asked", "a").write(json.dumps([call["policy"], call["callers"], call["prompts"]]) + "\\n")
        tokens = [[7] * length for length in call["lengths"]]
        seconds = 1.0 if call["policy"] == "covey" else 2.0
        found = {"tokens": tokens, "seconds": seconds, "call_ms": [0.5, 0.7, 0.9] if call["policy"] else []}
    print(json.dumps(found), flush=True)
"""


def test_everybody_answers_the_same_requests_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "stub.py"
    script.write_text(STUB)
    monkeypatch.setattr(engine, "SCRIPT", script)
    wanted = Wanted(tmp_path / "out.json", QUICK, peers=(f"vllm={sys.executable}",), repetitions=2)
    session = Session("engine", wanted, Console(quiet=True))
    engine.run(session)
    found = session.write()
    engine.show(found, Console(quiet=True), tmp_path / "out.png")
    names = {"vllm plain", "vllm ngram", "vllm draft model", "in vllm off", "in vllm fixed:2", "in vllm fixed:4"}
    assert set(found["tokens_per_second"]["4"]) == names | {"in vllm covey", "in vllm lookups alone"}
    assert found["covey_over_plain"]["1"]["median"] == pytest.approx(2.0)
    assert found["covey_over_best_static"]["4"]["median"] == pytest.approx(2.0)
    assert found["call_ms"]["4"]["in vllm covey"] == 0.7
    assert (found["turns"], found["vllm"]) == (2, "1")
    asked = [json.loads(line) for line in (tmp_path / "stub.py.asked").read_text().splitlines()]
    assert len(asked) == 3 * 2 * 8
    assert len({str(prompts) for _, callers, prompts in asked if callers == 4}) == 3


def test_vllm_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="vllm=PYTHON"):
        engine.run(Session("engine", Wanted(tmp_path / "out.json"), Console(quiet=True)))

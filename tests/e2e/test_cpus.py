"""A server on other CPUs than this one: code is compiled from nothing, and drafts change no text.

A CPU with instructions that this machine lacks has its code compiled only: what that would lack there shows as well.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from covey.models.native import compiled
from covey.process import cpu
from covey.process.private import KEPT_VARIABLE
from tests.waiting import until

pytestmark = pytest.mark.e2e
GRID = ("tests/test_lossless_grid.py", "tests/test_lossless_choice.py", "tests/models/test_native_model.py")
PROMPTS = ("English: Where is the station?\nGerman:", "def read_lines(path):\n", "User: Do you like films?\nAssistant:")
PORTS = ("--http-port", "--grpc-port", "--metrics-port", "--front-http-port", "--front-grpc-port")


def runs_here(name: str) -> bool:
    return cpu.KNOWN[name] <= cpu._own()


def environment(name: str) -> dict[str, str]:
    libraries = {"ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"}  # set for this machine, where it is another one itself
    return {each: value for each, value in os.environ.items() if each not in libraries} | {cpu.VARIABLE: name}


def asked(address: str, **fields: Any) -> dict[str, Any]:
    request = urllib.request.Request(address, json.dumps(fields).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        found: dict[str, Any] = json.load(response)
    return found


@pytest.mark.budget(90)
@pytest.mark.parametrize("name", ["haswell", "cascadelake"])
def test_a_server_starts_and_answers(tmp_path: Path, name: str) -> None:
    own = environment(name) | {KEPT_VARIABLE: str(tmp_path)}
    made = subprocess.run(
        [sys.executable, "-m", "covey.models.native"], env=own, capture_output=True, text=True, check=True, timeout=280
    )
    assert "PyTorch" not in made.stdout
    if not runs_here(name):
        return
    log = tmp_path / "said"
    words = [sys.executable, "-m", "covey.server", *(word for port in PORTS for word in (port, "0"))]
    with log.open("w") as output:
        launcher = subprocess.Popen(words, env=own, stdout=output, stderr=subprocess.STDOUT)
    try:
        until(lambda: "Covey is ready" in log.read_text() or launcher.poll() is not None, 120)
        ready = log.read_text()
        assert f", weights in bfloat16, invariant numerics, for {name} (" in ready
        triton = re.findall(r"http://\S+/generate(?= )", ready)[0]
        openai = re.findall(r"http://\S+/v1/completions(?= )", ready)[0]
        for prompt in PROMPTS:
            fields = {"text_input": prompt, "max_tokens": 24, "temperature": 0.8, "seed": 5}
            texts = {asked(triton, speculation=how, **fields)["text_output"] for how in ("off", "auto", "fixed:4")}
            text = asked(openai, prompt=prompt, max_tokens=24, temperature=0.8, seed=5)["choices"][0]["text"]
            assert texts == {text}
    finally:
        launcher.send_signal(signal.SIGINT)
        launcher.wait(60)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["haswell", "znver2", "skylake-avx512", "cascadelake"])
def test_the_grids_of_exactness_hold(name: str) -> None:
    if not runs_here(name):
        pytest.skip(f"this CPU has not all instructions of {name}")
    words = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "not e2e", *GRID]
    done = subprocess.run(
        words,
        env=environment(name),
        cwd=Path(compiled.__file__).parents[4],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]

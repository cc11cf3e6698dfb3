"""A server on lesser CPUs than this one: it compiles code for them at its first start, and drafts change no text."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from covey.models.native import compiled
from covey.process import cpu
from covey.process.private import KEPT_VARIABLE
from tests.waiting import until

pytestmark = pytest.mark.e2e
GRID = (
    "tests/test_lossless_grid.py",
    "tests/test_lossless_choice.py",
    "tests/models/test_native_model.py",
    "tests/models/test_byte_tiles.py",
)
PROMPTS = ("English: Where is the station?\nGerman:", "def read_lines(path):\n", "User: Do you like films?\nAssistant:")
PROFILE = """
models = ["target", "covey", "draft_general"]
[speculation]
drafters = ["draft_general"]
"""
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


@contextmanager
def launched(log: Path, own: Mapping[str, str], *more: str) -> Iterator[str]:
    """What a launcher says until it is ready."""
    words = [sys.executable, "-m", "covey.launcher", *(word for port in PORTS for word in (port, "0")), *more]
    with log.open("w") as output:
        launcher = subprocess.Popen(words, env=own, stdout=output, stderr=subprocess.STDOUT)
    try:
        until(lambda: "Covey is ready" in log.read_text() or launcher.poll() is not None, log.read_text, 280)
        yield log.read_text()
    finally:
        launcher.send_signal(signal.SIGINT)
        launcher.wait(60)


def check_texts(ready: str) -> None:
    """Drafts change no text, at either door."""
    triton = re.findall(r"http://\S+/generate(?= )", ready)[0]
    openai = re.findall(r"http://\S+/v1(?=, )", ready)[0] + "/completions"
    fields = {"max_tokens": 24, "temperature": 0.8, "top_p": 0.9, "seed": 5}
    for prompt in PROMPTS:
        asking = fields | {"text_input": prompt}
        texts = {asked(triton, speculation=how, **asking)["text_output"] for how in ("off", "auto", "fixed:4")}
        text = asked(openai, prompt=prompt, **fields)["choices"][0]["text"]
        assert texts == {text}


@pytest.mark.parametrize("name", ["haswell", pytest.param("cascadelake", marks=pytest.mark.slow)])
def test_a_server_starts_and_answers(tmp_path: Path, name: str) -> None:
    if not runs_here(name):
        pytest.skip(f"this CPU has not all instructions of {name}")
    (tmp_path / "one.toml").write_text(PROFILE)
    own = environment(name) | {KEPT_VARIABLE: str(tmp_path)}
    with launched(tmp_path / "said", own, "--profile", str(tmp_path / "one.toml")) as ready:
        assert f"The target is in float32, weights in bfloat16, invariant numerics, for {name} (" in ready
        check_texts(ready)


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


@pytest.mark.slow
def test_without_avx2_pytorch_serves(tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text(PROFILE)
    with launched(tmp_path / "said", environment("nehalem"), "--profile", str(tmp_path / "one.toml")) as ready:
        assert "PyTorch computes instead of the native runtime: it needs AVX2, which nehalem (no AVX2; COVEY" in ready
        assert re.search(
            r"The target is in float32, \w+ numerics, for nehalem \(no AVX2; COVEY_CPU; \d cores?\)\.", ready
        )
        address = re.findall(r"http://\S+/generate(?= )", ready)[0]
        assert asked(address, text_input=PROMPTS[0], max_tokens=8)["text_output"]

"""A process on an older CPU than this one, which an emulator plays: every package, compiled code, and tokens."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from covey.launcher import bundled
from covey.launcher.options import state_folder
from covey.models.native import compiled
from covey.process import cpu

EMULATOR = "qemu-x86_64"
ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tests" / "on_a_cpu.py"
SMALL = ROOT / "model_repository" / "target" / "1"
LIBRARIES = {"ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "OPENBLAS_CORETYPE"}
FEATURES = """
from llvmlite import binding
print(binding.get_host_cpu_name(), *(name for name, there in binding.get_host_cpu_features().items() if there))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(
        shutil.which(EMULATOR) is None, reason=f"{EMULATOR} is not installed (Debian and Ubuntu: qemu-user)"
    ),
]


def models() -> list[str]:
    """Return the folders of the bundled models that are there."""
    real = bundled.folder(state_folder())
    return [str(SMALL), *([str(real)] if real.is_dir() else [])]


def decoded(python: list[str], starts: str, folders: list[str], **own: str) -> dict[str, Any]:
    """Return what the script prints. `starts` is the program that starts Python for its compiler."""
    kept = {name: value for name, value in os.environ.items() if name not in {*LIBRARIES, cpu.VARIABLE}}
    path = os.pathsep.join(map(str, (ROOT / "backends", ROOT / "client", ROOT)))
    done = subprocess.run(
        [*python, str(SCRIPT), starts, *folders],
        env=kept | {"PYTHONPATH": path} | own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def emulated(name: str, folder: Path) -> list[str]:
    """Return the words that start Python on that CPU. The emulator shows programs the list of instructions in
    /proc/cpuinfo of the host, so the list of the emulated CPU takes its place."""
    words = [EMULATOR, "-cpu", name, "-L", str(folder), sys.executable]
    said = subprocess.run([*words, "-c", FEATURES], capture_output=True, text=True, check=True)
    model, *flags = said.stdout.split()
    text = re.sub(r"(?m)^(flags\s*:).*$", lambda found: f"{found[1]} {' '.join(flags)}", cpu.CPUINFO.read_text())
    text = re.sub(r"(?m)^(model name\s*:).*$", lambda found: f"{found[1]} {model}", text)
    (folder / "proc").mkdir()
    (folder / "proc" / "cpuinfo").write_text(text)
    return words


def on(name: str, folder: Path, folders: list[str]) -> dict[str, Any]:
    """Return what the script prints on that CPU, with nothing compiled before."""
    words = emulated(name, folder)
    starts = folder / "python3"
    starts.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    starts.chmod(0o755)
    (folder / "compiled").mkdir()
    return decoded(words, str(starts), folders, **{compiled.FOLDER_VARIABLE: str(folder / "compiled")})


def test_haswell_decodes_what_this_cpu_decodes_for_it(tmp_path: Path) -> None:
    folders = models()
    found = on("Haswell", tmp_path, folders)
    assert found["features"] == sorted(cpu.KNOWN["haswell"])
    assert (found["compiler"], found["torch"]) == ("", "AVX2")
    expected = decoded([sys.executable], sys.executable, folders, **{cpu.VARIABLE: "haswell"})
    for name in (Path(folder).name for folder in folders):
        assert found[name]["runtime"] == "NativeModel"
        assert found[name] == expected[name]


def test_without_avx2_pytorch_decodes(tmp_path: Path) -> None:
    found = on("Nehalem", tmp_path, [str(SMALL)])
    assert re.fullmatch(r"it needs AVX2, which nehalem \(no AVX2; \d cores?\) lacks", found["compiler"])
    assert (found["features"], found["torch"]) == ([], "DEFAULT")
    assert len(found[SMALL.name]["tokens"]) == 8

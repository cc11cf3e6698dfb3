"""What a drafter's process is made of: no PyTorch, and little memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bundled import MODELS

BACKENDS = Path(__file__).parents[2] / "backends"
CODE = """
import sys, types
sys.modules["scipy"] = None  # a server's environment has none, which Numba would import
sys.path.insert(0, {backend!r})
sys.modules["triton_python_backend_utils"] = types.ModuleType("triton_python_backend_utils")
import model
from pathlib import Path
from covey.contracts import profile
from covey.drafters import load_drafter
from covey.process.footprint import private_bytes
from tests.drafters.drafting import Sender, Text
from covey.contracts.types import Sampling
kind, folder, target = sys.argv[1:]
drafter = load_drafter(kind, folder, target, profile.load("demo-cpu"), name="draft")
texts = [Text(tag, [5, 6, 7, 8] * 25, Sampling(temperature=tag % 2, seed=tag)) for tag in range(4)]
reply = Sender(drafter).send(texts, 4, [1, 1, 3, 3])
status = Path("/proc/self/status").read_text()
(resident,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")]
heavy = sorted({{"torch", "transformers"}} & set(sys.modules))
print(len(reply.trees.tokens), private_bytes() >> 20, resident >> 10, *heavy)
"""


@pytest.mark.parametrize(("kind", "most"), [("neural", 150), ("suffix", 60)])
def test_a_process_that_only_drafts_has_no_torch_and_is_small(kind: str, most: int) -> None:
    """In MB, bundled weights and KV memory included; most pages of libraries are shared with other processes."""
    code = CODE.format(backend=str(BACKENDS / "drafter"))
    folders = [str(MODELS / name / "1") for name in ("draft_code", "target")]
    done = subprocess.run([sys.executable, "-c", code, kind, *folders], capture_output=True, text=True, check=True)
    nodes, private, resident, *heavy = done.stdout.split()
    assert int(nodes) > 0
    assert not heavy
    assert int(private) < most
    assert int(resident) < most + 25

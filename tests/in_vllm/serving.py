"""vLLM's CPU build with and without our proposer, each engine in a process under the Python that COVEY_VLLM_PYTHON
names."""

from __future__ import annotations

import os
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import covey
import covey_client
from covey.contracts.types import JsonDict
from loadtest.bench.peers.pipe import Pipe

SCRIPT = Path(__file__).with_name("vllm_script.py")
PATHS = [str(Path(package.__file__).parents[1]) for package in (covey, covey_client)]
PYTHON = os.environ.get("COVEY_VLLM_PYTHON", "")
needs_vllm = [
    pytest.mark.skipif(not PYTHON, reason="COVEY_VLLM_PYTHON names no Python that has vLLM"),
    pytest.mark.timeout(900),
]

MODELS = Path(covey.__file__).parents[2] / "model_repository"
TARGET, DRAFTER = str(MODELS / "target" / "1"), str(MODELS / "draft_general" / "1")
DRAFTERS = {"general": DRAFTER, "suffix": "suffix", "ngram": "ngram"}
POLICIES = {
    policy: {"drafters": DRAFTERS, "speculation": {"policy": policy}} for policy in ("adaptive", "fixed:3", "off")
}
OURS = {"method": "custom_class", "model": "covey_vllm.CoveyProposer", "num_speculative_tokens": 4}
ENGINE = {"max_model_len": 160, "max_num_seqs": 32, "enable_prefix_caching": True, "block_size": 32}


def engine(stack: ExitStack, policies: JsonDict | None = None, **given: Any) -> Pipe:
    """Plain without policies."""
    pipe = Pipe("ours" if policies else "plain", [PYTHON, str(SCRIPT)])
    stack.callback(pipe.close)
    own = {"paths": PATHS, "policies": policies} if policies else {}
    pipe.call(
        "open",
        target=TARGET,
        dtype="float32",
        threads=1,
        speculative=OURS if policies else None,
        **{**ENGINE, **own, **given},
    )
    return pipe


def asks(count: int, seed: int = 0) -> dict[str, Any]:
    """Requests of several lengths; every other one begins like the others, and some are the same."""
    rng = random.Random(seed)
    shared = [rng.randrange(5, 4000) for _ in range(32)]
    prompts = [
        [*(shared if row % 2 else ()), *(rng.randrange(5, 4000) for _ in range(rng.randrange(3, 60)))]
        for row in range(count)
    ]
    if count > 2:
        prompts[2] = prompts[0]
    lengths = [rng.randrange(12, 60) for _ in prompts]
    return {"prompts": prompts, "lengths": lengths, "temperature": 0.0, "seed": 1}

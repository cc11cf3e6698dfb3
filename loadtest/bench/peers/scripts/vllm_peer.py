"""Serves vLLM's build for CPUs over a pipe: `python vllm_peer.py` in an environment that has it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from answering import answer

CACHE_GB = 1
NGRAM = 3  # the longest one that is looked up
OPENMP = "libiomp5.so"  # must be loaded before anything else computes
LIMITS = {"enable_prefix_caching": False, "max_model_len": 1024, "max_num_seqs": 32}


class Vllm:
    """Owns the engine. It converts nothing."""

    def load(self, target: str, drafter: str, dtype: str, threads: int, depth: int, **_: str) -> dict[str, Any]:
        """Load an engine that is built for one number of drafts."""
        kind = (
            {"method": "draft_model", "model": drafter} if drafter else {"method": "ngram", "prompt_lookup_max": NGRAM}
        )
        drafts = {**kind, "num_speculative_tokens": depth} if depth else None
        self.open(target, dtype, threads, speculative_config=drafts, **LIMITS)
        import vllm

        return {"version": vllm.__version__}

    def open(self, target: str, dtype: str, threads: int, **engine: Any) -> None:
        """Load an engine with other arguments of vLLM's; some it takes from the environment alone."""
        os.environ |= {
            "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GB),
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}" if threads > 1 else "0",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        import vllm

        self.engine = vllm.LLM(target, dtype=dtype, enforce_eager=True, disable_log_stats=True, **engine)

    def generate(
        self, prompts: list[list[int]], tokens: int, temperature: float, seed: int, **_: int
    ) -> dict[str, Any]:
        """Answer all prompts at once."""
        from vllm import SamplingParams

        asked = [
            SamplingParams(max_tokens=tokens, temperature=temperature, seed=seed + row, ignore_eos=True)
            for row in range(len(prompts))
        ]
        found = self.engine.generate([{"prompt_token_ids": ids} for ids in prompts], asked, use_tqdm=False)
        return {"tokens": [list(each.outputs[0].token_ids) for each in found]}


def preload() -> None:
    """Begin anew with the OpenMP library of this environment in front of all others."""
    found = next(iter(sorted(Path(sys.prefix).rglob(OPENMP))), None)
    if found is not None and OPENMP not in os.environ.get("LD_PRELOAD", ""):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "LD_PRELOAD": str(found)})


if __name__ == "__main__":
    preload()
    peer = Vllm()
    answer({"load": peer.load, "generate": peer.generate})

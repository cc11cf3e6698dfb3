"""Has vLLM's build for CPUs asked over a pipe: `python vllm_peer.py` in an environment that has it.

An engine speculates in one way, with a proposer of its own or of ours. One with our proposer has several policies, each
a proposer of its own.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from answering import answer

CACHE_GB = 1
OPENMP = "libiomp5.so"  # which this build must find loaded before anything else computes


def settle(threads: int) -> None:
    """Say to vLLM, before it is imported, what it takes from the environment alone."""
    os.environ |= {
        "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GB),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}" if threads > 1 else "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }


class Vllm:
    """Owns the engine. It converts nothing."""

    def load(self, target: str, drafter: str, dtype: str, threads: int, depth: int, **_: str) -> dict[str, Any]:
        """Load an engine that is built for one number of drafts."""
        drafts = {"model": drafter, "num_speculative_tokens": depth, "method": "draft_model"} if depth else None
        limits = {"enable_prefix_caching": False, "max_model_len": 1024, "max_num_seqs": 32}
        return {"depths": [depth], **self.open(target, dtype, threads, drafts, **limits)}

    def generate(
        self, prompts: list[list[int]], tokens: int, temperature: float, seed: int, **_: int
    ) -> dict[str, Any]:
        """Answer all prompts at once."""
        return self.serve(prompts, [tokens] * len(prompts), len(prompts), temperature, seed)

    def open(
        self,
        target: str,
        dtype: str,
        threads: int,
        speculative: dict[str, Any] | None,
        paths: Sequence[str] = (),
        policies: dict[str, dict[str, Any]] | None = None,
        **engine: Any,
    ) -> dict[str, Any]:
        """`speculative` is vLLM's `speculative_config`; `policies`, by name, are tables for our proposer, which is in
        `paths`; `engine`: other arguments of vLLM's."""
        settle(threads)
        sys.path[:0] = paths
        import vllm

        first = next(iter(policies.values())) if policies else None
        self._engine = vllm.LLM(
            target,
            dtype=dtype,
            enforce_eager=True,
            speculative_config=speculative,
            additional_config={"covey": first} if first else {},
            disable_log_stats=True,
            **engine,
        ).llm_engine
        self._runner = self._engine.model_executor.driver_worker.worker.model_runner
        self._proposers: dict[str, Any] = {}
        shared: dict[str, Any] = {}  # neural drafters, which keep what they know of one proposer's texts from others
        for name, table in (policies or {}).items():
            self._runner.vllm_config.additional_config = {"covey": table}
            made = self._proposers[name] = type(self._runner.drafter)(self._runner.vllm_config)
            made.load_model(drafters=shared)
            shared |= {each: own for each, own in made.drafters.items() if made.settings.kind(each) == "neural"}
        self._count = 0
        return {"version": vllm.__version__}

    def serve(
        self,
        prompts: list[list[int]],
        lengths: list[int],
        callers: int,
        temperature: float,
        seed: int,
        policy: str = "",
        abort: int = 0,
        top_p: float = 1.0,
    ) -> dict[str, Any]:
        """Answer requests in their order, so many at a time; the first `abort` of them are aborted after their first
        token. `draft_ms`: what drafters took in our proposer's last call, by step."""
        from vllm import SamplingParams

        if policy:
            self._runner.drafter = self._proposers[policy]
        waiting = list(range(len(prompts)))[::-1]
        texts: dict[str, list[int]] = {}
        row_of: dict[str, int] = {}
        held = self._engine.engine_core.engine_core.scheduler.requests
        preempted: dict[str, int] = {}
        draft_ms: list[float] = []
        steps, started = 0, time.perf_counter()
        while waiting or self._engine.has_unfinished_requests():
            while waiting and len(row_of) - len(texts) < callers:
                row = waiting.pop()
                self._count += 1
                name = str(self._count)
                row_of[name] = row
                asked = SamplingParams(
                    max_tokens=lengths[row], temperature=temperature, top_p=top_p, seed=seed + row, ignore_eos=True
                )
                self._engine.add_request(name, {"prompt_token_ids": prompts[row]}, asked)
            for found in self._engine.step():
                early = row_of[found.request_id] < abort and not found.finished
                if early:
                    self._engine.abort_request([found.request_id])
                if found.finished or early:
                    texts[found.request_id] = list(found.outputs[0].token_ids)
            steps += 1
            draft_ms += [1000 * self._proposers[policy].draft_seconds] if policy else []
            preempted |= {name: request.num_preemptions for name, request in held.items()}
        seconds = time.perf_counter() - started
        by_row = {row_of[name]: tokens for name, tokens in texts.items()}
        return {
            "tokens": [by_row[row] for row in range(len(prompts))],
            "seconds": seconds,
            "steps": steps,
            "preempted": sum(preempted.values()),
            "draft_ms": draft_ms,
            "figures": list(self._proposers[policy].figures()) if policy else [],
        }

    def fail(self, drafter: str, failing: bool) -> dict[str, Any]:
        """Have a drafter of every policy's proposer raise at every call, or no more."""
        for own in {id(each.drafters[drafter]): each.drafters[drafter] for each in self._proposers.values()}.values():
            if failing:
                own.draft = _broken
            else:
                del own.draft
        return {}


def _broken(_work: Any) -> Any:
    raise RuntimeError("this drafter is broken")


def preload() -> None:
    """Begin anew with the OpenMP library of this environment in front of all others."""
    found = next(iter(sorted(Path(sys.prefix).rglob(OPENMP))), None)
    if found is not None and OPENMP not in os.environ.get("LD_PRELOAD", ""):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "LD_PRELOAD": str(found)})


if __name__ == "__main__":
    preload()
    peer = Vllm()
    answer({"load": peer.load, "generate": peer.generate, "open": peer.open, "serve": peer.serve, "fail": peer.fail})

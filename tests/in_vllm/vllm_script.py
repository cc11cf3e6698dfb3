"""Has vLLM's build for CPUs asked over a pipe, with our proposer or without: `python vllm_script.py` in an environment
that has vLLM, and none of Covey but what `open` is told.

An engine with our proposer has several policies, each a proposer of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "loadtest" / "bench" / "peers" / "scripts"))

from answering import answer
from vllm_peer import Vllm, preload


class WithProposers(Vllm):
    """Owns the engine and the proposers."""

    def begin(
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
        sys.path[:0] = paths
        first = {"covey": next(iter(policies.values()))} if policies else {}
        self.open(target, dtype, threads, speculative_config=speculative, additional_config=first, **engine)
        self._core = self.engine.llm_engine
        self._runner = self._core.model_executor.driver_worker.worker.model_runner
        self._proposers: dict[str, Any] = {}
        shared: dict[str, Any] = {}  # neural drafters, which keep what they know of one proposer's texts from others
        for name, table in (policies or {}).items():
            self._runner.vllm_config.additional_config = {"covey": table}
            made = self._proposers[name] = type(self._runner.drafter)(self._runner.vllm_config)
            made.use({each: shared.get(each) or made.loaded(each) for each in made.settings.drafters})
            shared |= {each: own for each, own in made.drafters.items() if made.settings.kind(each) == "neural"}
        self._count = 0
        return {}

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
        token. `drafted`: the tokens that vLLM was given to verify."""
        from vllm import SamplingParams

        if policy:
            self._runner.drafter = self._proposers[policy]
        waiting = list(range(len(prompts)))[::-1]
        texts: dict[str, list[int]] = {}
        row_of: dict[str, int] = {}
        held = self._core.engine_core.engine_core.scheduler.requests
        preempted: dict[str, int] = {}
        steps = drafted = 0
        while waiting or self._core.has_unfinished_requests():
            while waiting and len(row_of) - len(texts) < callers:
                row = waiting.pop()
                self._count += 1
                name = str(self._count)
                row_of[name] = row
                asked = SamplingParams(
                    max_tokens=lengths[row], temperature=temperature, top_p=top_p, seed=seed + row, ignore_eos=True
                )
                self._core.add_request(name, {"prompt_token_ids": prompts[row]}, asked)
            for found in self._core.step():
                early = row_of[found.request_id] < abort and not found.finished
                if early:
                    self._core.abort_request([found.request_id])
                if found.finished or early:
                    texts[found.request_id] = list(found.outputs[0].token_ids)
            steps += 1
            given = self._runner._draft_token_ids
            drafted += sum(map(len, given)) if isinstance(given, list) else 0
            preempted |= {name: request.num_preemptions for name, request in held.items()}
        by_row = {row_of[name]: tokens for name, tokens in texts.items()}
        return {
            "tokens": [by_row[row] for row in range(len(prompts))],
            "steps": steps,
            "drafted": drafted,
            "preempted": sum(preempted.values()),
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


if __name__ == "__main__":
    preload()
    made = WithProposers()
    answer({"open": made.begin, "serve": made.serve, "fail": made.fail})

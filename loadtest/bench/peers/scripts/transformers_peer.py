"""Serves Hugging Face's transformers over a pipe: `python transformers_peer.py` in an environment that has it.

Plain decoding has a static cache; on a GPU its passes are compiled and recorded. Drafts are assisted generation, with a
draft model or the prompt's n-grams, which knows one request at a time.
"""

from __future__ import annotations

from typing import Any

from answering import answer


class Transformers:
    """Owns the models."""

    def load(self, target: str, drafter: str, dtype: str, threads: int, depth: int, kept: str) -> dict[str, Any]:  # noqa: ARG002 - nothing is converted
        """Load the models, onto a GPU if there is one."""
        import torch
        import transformers

        torch.set_num_threads(threads)
        self._torch, self._device = torch, "cuda" if torch.cuda.is_available() else "cpu"
        self._target = self._opened(transformers, target, dtype)
        self._drafter = self._opened(transformers, drafter, dtype) if depth and drafter else None
        return {"version": transformers.__version__}

    def generate(
        self, prompts: list[list[int]], tokens: int, temperature: float, seed: int, depth: int
    ) -> dict[str, Any]:
        """Answer prompts of one length."""
        torch = self._torch
        torch.manual_seed(seed)
        settings: dict[str, Any] = {"min_new_tokens": tokens, "max_new_tokens": tokens, "do_sample": temperature > 0}
        settings |= {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}
        batches = [prompts]
        if depth:
            batches = [[each] for each in prompts]
            settings |= self._drafts(depth)
        else:
            settings["cache_implementation"] = "static"
        found = []
        for batch in batches:
            ids = torch.tensor(batch, device=self._device)
            out = self._target.generate(ids, attention_mask=torch.ones_like(ids), **settings)
            found += out[:, len(batch[0]) :].tolist()
        return {"tokens": found}

    def _opened(self, transformers: Any, folder: str, dtype: str) -> Any:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(self._torch, dtype))
        model.generation_config.pad_token_id = 0
        return model.to(self._device).eval()

    def _drafts(self, depth: int) -> dict[str, Any]:
        if self._drafter is None:
            return {"prompt_lookup_num_tokens": depth}
        self._drafter.generation_config.num_assistant_tokens = depth
        self._drafter.generation_config.num_assistant_tokens_schedule = "constant"
        self._drafter.generation_config.assistant_confidence_threshold = 0.0
        return {"assistant_model": self._drafter}


if __name__ == "__main__":
    peer = Transformers()
    answer({"load": peer.load, "generate": peer.generate})

"""Serves OpenVINO GenAI over a pipe: `python openvino_genai_peer.py` in an environment that has it.

A pipeline decodes plainly, or with a draft model or the prompt's n-grams and the number of drafts in each request.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from answering import answer

PRECISIONS = {"bfloat16": "bf16", "float32": "f32"}
CACHE_BLOCKS = 512
NGRAM = 3  # the longest one that is looked up


class OpenVino:
    """Owns the pipeline."""

    def load(self, target: str, drafter: str, dtype: str, threads: int, depth: int, kept: str) -> dict[str, Any]:
        """Load the pipeline. Converted models are in `kept`; missing ones are made."""
        import openvino_genai as genai

        properties: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
            "KV_CACHE_PRECISION": PRECISIONS[dtype],
            "INFERENCE_NUM_THREADS": threads,
        }
        scheduler = genai.SchedulerConfig()
        scheduler.num_kv_blocks = CACHE_BLOCKS
        scheduler.enable_prefix_caching = False
        self._looks_up = not drafter
        if depth and self._looks_up:
            properties["prompt_lookup"] = True
        elif depth:
            properties["draft_model"] = genai.draft_model(str(_converted(drafter, kept)), "CPU", **properties)
        self._genai = genai
        self._pipeline = genai.LLMPipeline(
            str(_converted(target, kept)), "CPU", scheduler_config=scheduler, **properties
        )
        return {"version": genai.__version__}

    def generate(
        self, prompts: list[list[int]], tokens: int, temperature: float, seed: int, depth: int
    ) -> dict[str, Any]:
        """Answer prompts of one length. Nothing says how many drafts were accepted."""
        import numpy as np
        from openvino import Tensor

        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = tokens, True
        config.do_sample = temperature > 0
        if temperature > 0:
            config.temperature, config.top_k, config.top_p, config.rng_seed = temperature, 0, 1.0, seed
        if depth:
            config.num_assistant_tokens = depth
        if depth and self._looks_up:
            config.max_ngram_size = NGRAM
        ids = np.asarray(prompts, np.int64)
        inputs = self._genai.TokenizedInputs(Tensor(ids), Tensor(np.ones_like(ids)))
        found = self._pipeline.generate(inputs, config)
        return {"tokens": [list(row) for row in found.tokens]}


def _converted(folder: str, kept: str) -> Path:
    """Return a model in OpenVINO's form, with its tokenizer. The weights keep their type."""
    source = Path(folder)
    made = Path(kept) / source.resolve().as_posix().strip("/").replace("/", "-")
    if (made / "openvino_model.xml").is_file():
        return made
    import openvino
    from openvino_tokenizers import convert_tokenizer
    from optimum.intel import OVModelForCausalLM
    from transformers import AutoTokenizer

    staging = made.with_name(made.name + f".{os.getpid()}")
    model = OVModelForCausalLM.from_pretrained(folder, export=True, compile=False, load_in_8bit=False)
    model.save_pretrained(staging)
    tokenizer = convert_tokenizer(AutoTokenizer.from_pretrained(folder), with_detokenizer=True)
    for name, part in zip(("openvino_tokenizer.xml", "openvino_detokenizer.xml"), tokenizer):
        openvino.save_model(part, staging / name)
    staging.rename(made)
    return made


if __name__ == "__main__":
    peer = OpenVino()
    answer({"load": peer.load, "generate": peer.generate})

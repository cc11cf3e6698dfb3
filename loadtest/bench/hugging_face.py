"""Competitor: transformers' own `generate` with the same weights: plain, assisted by a draft model, prompt lookup.

Batches are padded on the left and run until their longest answer is done; only the tokens that were asked for count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from covey.models.loading import choose_device, choose_dtype
from covey.profile import TargetSettings
from covey.tokenization import load_tokenizer
from loadtest.bench.work import Answer, Ask, Run


class Weights:
    """A model loaded once for every way of generating with it, in the type and on the device of Covey's target."""

    def __init__(self, model: Any, tokenizer: Tokenizer | None) -> None:
        """Without a tokenizer prompts are ids."""
        self.model, self.tokenizer = model, tokenizer
        self.device = model.device
        found = model.generation_config.eos_token_id
        self.end_ids: list[int] = [] if found is None else [found] if isinstance(found, int) else list(found)
        model.generation_config.eos_token_id = None  # unless `options` say so, texts run to their length
        model.generation_config.pad_token_id = 0
        self._threads: dict[int, int] = {}

    @classmethod
    def load(cls, folder: str | Path, settings: TargetSettings) -> Weights:
        from transformers import AutoModelForCausalLM  # slow to import
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        device = choose_device(settings.device)
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=choose_dtype(settings.dtype, device), attn_implementation="sdpa", local_files_only=True
        )
        tokenizer = load_tokenizer(folder)
        assert tokenizer is not None, f"{folder} has no tokenizer"
        return cls(model.to(device).eval(), tokenizer)

    def prompt(self, ask: Ask) -> list[int]:
        """Its ids."""
        if ask.ids:
            return list(ask.ids)
        assert self.tokenizer is not None, "asked by text, and told no tokenizer"
        return self.tokenizer.encode(ask.text).ids

    def threads(self, rows: int) -> int:
        """How many threads suit passes of so many rows, by trial: small models are faster on one, and on a machine
        that does other things too, threads that wait for each other cost most."""
        if rows not in self._threads:
            self._threads[rows] = min((1, os.cpu_count() or 1), key=lambda count: self._trial(rows, count))
        return self._threads[rows]

    @torch.inference_mode()
    def _trial(self, rows: int, threads: int) -> float:
        """Seconds of the faster of two short generations."""
        torch.set_num_threads(threads)
        ids = torch.ones((rows, 16), dtype=torch.long, device=self.device)
        seconds = []
        for _ in range(2):
            started = time.perf_counter()
            self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)
            seconds.append(time.perf_counter() - started)
        return min(seconds)


class HuggingFace:
    """`options` go to `generate` as they are."""

    def __init__(
        self,
        name: str,
        weights: Weights,
        *,
        assistant: Weights | None = None,
        assistant_settings: Mapping[str, object] | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        self.name = name
        self._weights = weights
        self._assistant = assistant
        self._assistant_settings = dict(assistant_settings or {})
        self._options = dict(options or {})

    def run(self, asks: Sequence[Ask], concurrency: int, tenant: str = "") -> Run:  # noqa: ARG002 - it has no cache
        torch.set_num_threads(self._weights.threads(min(concurrency, len(asks))))
        answers: list[Answer] = []
        started = time.perf_counter()
        for start in range(0, len(asks), concurrency):
            answers += self._generate(asks[start : start + concurrency])
        return Run(tuple(answers), time.perf_counter() - started)

    def close(self) -> None:
        """Nothing runs between calls."""

    @torch.inference_mode()
    def _generate(self, asks: Sequence[Ask]) -> list[Answer]:
        started = time.perf_counter()
        prompts = [self._weights.prompt(ask) for ask in asks]
        width, device = max(map(len, prompts)), self._weights.device
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=device)
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
        longest = max(ask.max_tokens for ask in asks)
        found = self._weights.model.generate(
            ids, attention_mask=mask, max_new_tokens=longest, **self._sampling(asks[0]), **self._helper()
        )
        seconds = time.perf_counter() - started
        self._note()
        rows = found[:, width:].tolist()
        return [Answer(tuple(row[: ask.max_tokens]), seconds) for row, ask in zip(rows, asks)]

    def _sampling(self, ask: Ask) -> dict[str, object]:
        if ask.temperature == 0.0:
            return {"do_sample": False, **self._options}
        torch.manual_seed(ask.seed)
        return {"do_sample": True, "temperature": ask.temperature, "top_k": 0, "top_p": 1.0, **self._options}

    def _helper(self) -> dict[str, object]:
        """The draft model, whose configuration says how many tokens it proposes: of the competitors that share it,
        each has its own."""
        if self._assistant is None:
            return {}
        for key, value in self._assistant_settings.items():
            setattr(self._assistant.model.generation_config, key, value)
        return {"assistant_model": self._assistant.model}

    def _note(self) -> None:
        """The schedule `heuristic` leaves in the configuration what it has learnt."""
        if self._assistant is not None:
            found = self._assistant.model.generation_config
            self._assistant_settings = {key: getattr(found, key) for key in self._assistant_settings}

"""A stand-in for vLLM's runner and scheduler: what they do between two calls of a proposer, by the hash of
`tests.fakes`, and their configuration as far as a proposer looks at it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

from covey.contracts.types import Ints
from tests.fakes import VOCAB, next_token


class Proposer(Protocol):
    def propose(
        self, sampled_token_ids: Sequence[Sequence[int]], num_tokens_no_spec: Ints, token_ids_cpu: Ints
    ) -> list[list[int]]: ...


def config(
    table: object = None, *, depth: int = 4, target: str = "", vocab: int = VOCAB, limit: int = 256, rank: int = 0
) -> Any:
    """vLLM's, by the attributes that are read of it."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=depth),
        additional_config={} if table is None else {"covey": table},
        parallel_config=SimpleNamespace(rank=rank, tensor_parallel_size=2),
        model_config=SimpleNamespace(
            model=target,
            max_model_len=limit,
            get_vocab_size=lambda: vocab,
            hf_config=SimpleNamespace(eos_token_id=0),
        ),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64, max_num_seqs=8),
    )


class Runner:
    """Decodes greedily, verifies drafts as certain ones, and moves, preempts and brings back rows at random."""

    def __init__(self, proposer: Proposer, *, rows: int, limit: int = 256, seed: int = 0, chunk: int = 16) -> None:
        self.proposer, self.rows, self.limit, self.chunk = proposer, rows, limit, chunk
        self.rng = random.Random(seed)
        self.texts: dict[str, list[int]] = {}
        self.proposed = self.accepted = self.steps = 0
        self._read: dict[str, int] = {}
        self.running: list[str] = []
        self._waiting: list[str] = []
        self._left: dict[str, int] = {}
        self._drafts: dict[str, list[int]] = {}

    def serve(
        self, prompts: Mapping[str, Sequence[int]], tokens: int, *, preempts: float = 0.0
    ) -> dict[str, list[int]]:
        """What the requests put out."""
        for name, prompt in prompts.items():
            self.texts[name], self._read[name], self._left[name] = list(prompt), 0, tokens
        self._waiting += prompts
        while self.running or self._waiting:
            self._schedule(preempts)
            self._step()
        return {name: self.texts[name][len(prompt) :][:tokens] for name, prompt in prompts.items()}

    def _schedule(self, preempts: float) -> None:
        if len(self.running) > 1 and self.rng.random() < preempts:
            name = self.running.pop(self.rng.randrange(len(self.running)))
            self._read[name] = 0
            self._drafts.pop(name, None)
            self._waiting.append(name)
        while self._waiting and len(self.running) < self.rows:
            self.running.append(self._waiting.pop(0))
        if self.rng.random() < 0.3:
            self.rng.shuffle(self.running)

    def _step(self) -> None:
        self.steps += 1
        sampled: list[list[int]] = []
        for name in self.running:
            text = self.texts[name]
            self._read[name] = min(len(text), self._read[name] + self.chunk)
            new: list[int] = []
            if self._read[name] == len(text):
                drafts = self._drafts.pop(name, [])
                self.proposed += len(drafts)
                while True:
                    new.append(next_token([*text, *new]))
                    if len(new) > len(drafts) or drafts[len(new) - 1] != new[-1]:
                        break
                self.accepted += len(new) - 1
                text += new
                self._read[name] = len(text) - 1
            sampled.append(new)
        tokens = np.zeros((self.rows, self.limit), np.int32)
        lengths = np.zeros(self.rows, np.int32)
        for row, name in enumerate(self.running):
            lengths[row] = len(self.texts[name])
            tokens[row, : lengths[row]] = self.texts[name]
        drafts = self.proposer.propose(sampled, lengths, tokens)
        assert len(drafts) == len(self.running)
        for name, new, draft in zip(list(self.running), sampled, drafts):
            self._left[name] -= len(new)
            self._drafts[name] = draft
            if self._left[name] <= 0:
                self.running.remove(name)

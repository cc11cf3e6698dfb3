"""What neural drafters should propose: their models by transformers, whole texts at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from covey.contracts.profile import DrafterSettings
from covey.contracts.types import Sampling
from covey.drafters.neural import NeuralDrafter
from covey.noise.noise import Purpose, keys, race, seed_words
from covey.sampling.drawing import SettingsTable, draw

VOCAB = 97
TINY = DrafterSettings(dtype="float32", kv_blocks=256)
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=1.0, seed=11),
    Sampling(temperature=0.7, seed=12),
    Sampling(temperature=1.3, top_k=5, seed=13),
    Sampling(temperature=0.9, top_p=0.6, seed=14),
    Sampling(temperature=1.0, top_k=20, top_p=0.8, min_p=0.02, seed=15),
]


def load(folder: Path, **changes: object) -> NeuralDrafter:
    return NeuralDrafter.load(folder, replace(TINY, **changes), name="draft")  # type: ignore[arg-type]


def text(rng: np.random.Generator, length: int) -> list[int]:
    return [int(token) for token in rng.integers(2, VOCAB, length)]


class Reference:
    """One model."""

    def __init__(self, folder: Path) -> None:
        import transformers

        self._model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )

    def logits(self, tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = self._model(torch.tensor([tokens])).logits[0, -1:].float()
        return found

    def raced(self, tokens: list[int], sampling: Sampling) -> npt.NDArray[np.float64]:
        """logits / temperature + noise of the next position."""
        logits = self.logits(tokens)
        if sampling.greedy:
            return logits[0].double().numpy()
        best = logits.max(1)
        row_keys = keys(seed_words(np.array([sampling.seed], np.uint64)), np.array([len(tokens)]), Purpose.COUPLED)
        leaders = (best.indices.numpy()[:, None], best.values.double().numpy()[:, None])
        entrants = race(logits, *leaders, np.array([sampling.temperature]), row_keys, prune=False)
        found = np.full(VOCAB, -np.inf)
        found[entrants.tokens] = entrants.scores
        return found

    def chain(self, tokens: list[int], depth: int, sampling: Sampling) -> list[int]:
        path: list[int] = []
        for _ in range(depth):
            path.append(int(self.raced(tokens + path, sampling).argmax()))
        return path

    def drawn(self, tokens: list[int], depth: int, sampling: Sampling) -> list[int]:
        """What a target of the same weights draws."""
        table = SettingsTable()
        slot = table.add(sampling, len(tokens))
        path: list[int] = []
        for _ in range(depth):
            at = np.array([len(tokens) + len(path)], np.int32)
            path.append(int(draw(self.logits(tokens + path), table, np.array([slot], np.int32), at).tokens[0]))
        return path

    def beam(self, tokens: list[int], depth: int, width: int, sampling: Sampling) -> dict[tuple[int, ...], float]:
        """Path to score of all nodes of a beam search."""
        found: dict[tuple[int, ...], float] = {}
        level: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for _ in range(depth):
            children = []
            for score, path in level:
                raced = self.raced(tokens + list(path), sampling)
                raced = raced - raced.max() - np.log(np.exp(raced - raced.max()).sum())
                children += [(score + gain, (*path, token)) for token, gain in enumerate(raced.tolist())]
            level = sorted(children, key=lambda item: -item[0])[:width]
            found |= {path: score for score, path in level}
        return found

"""A learned router: a prompt's drafter, chosen before the first round and kept, as MetaSD's Table 6 has it from BERT.

Multinomial logistic regression on the prompt's token ids: log(1 + count) in buckets, scaled to length 1. It was trained
on the bundled prompts (`python -m covey.training router`), so it knows the bundled tokenizer's ids, six forms of
prompts and the drafters of the model repository, and nothing of rephrased prompts or other domains: that is the flaw on
show. With another tokenizer, or where none of its drafters is declared, it does what `fixed` does, and says so once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from covey.bandits.drafters.choice import Unlearned
from covey.contracts.types import Ints

Array = npt.NDArray[np.float64]
BUCKETS = 1024
SPREAD = 0x9E3779B1  # an odd multiplier whose upper bits depend on all of the id's
log = logging.getLogger("covey.planner")


@dataclass(frozen=True, slots=True)
class Weights:
    """The learnt weights; scores are `matrix @ features + bias`."""

    tokenizer: str  # SHA-256 of the tokenizer.json whose ids it knows
    drafters: tuple[str, ...]
    matrix: Array  # a row for each drafter
    bias: Array

    def save(self, path: Path) -> None:
        names = np.array(self.drafters)
        halves = {"matrix": self.matrix.astype(np.float16), "bias": self.bias.astype(np.float16)}
        np.savez_compressed(path, tokenizer=np.array(self.tokenizer), drafters=names, **halves)

    @staticmethod
    def load() -> Weights:
        """Return the weights that the package has."""
        with resources.as_file(resources.files(__package__) / "router.npz") as path, np.load(path) as file:
            matrix, bias = file["matrix"].astype(np.float64), file["bias"].astype(np.float64)
            return Weights(str(file["tokenizer"]), tuple(file["drafters"].tolist()), matrix, bias)

    def scores(self, prompt: Ints) -> Array:
        scores: Array = self.matrix @ features(prompt) + self.bias
        return scores


class Router(Unlearned):
    """Implements `Bandit`."""

    def __init__(self, names: Sequence[str], prompt: Ints, tokenizer: str) -> None:
        weights = _fitting(tuple(names), tokenizer)
        scores = {} if weights is None else dict(zip(weights.drafters, weights.scores(prompt).tolist()))
        self._scores = [scores.get(name, -np.inf) for name in names]

    def choose(self, allowed: Sequence[int]) -> int:
        return max(allowed, key=self._scores.__getitem__)


def features(prompt: Ints) -> Array:
    buckets = (prompt.astype(np.uint32) * np.uint32(SPREAD)) >> np.uint32(32 - BUCKETS.bit_length() + 1)
    counts = np.log1p(np.bincount(buckets, minlength=BUCKETS))
    scaled: Array = counts / max(1.0, float(np.linalg.norm(counts)))
    return scaled


@cache
def _fitting(names: tuple[str, ...], tokenizer: str) -> Weights | None:
    """Return the weights where they know these drafters and this tokenizer. Remembered: read, or warned of, once."""
    weights = Weights.load()
    wrong = "" if tokenizer == weights.tokenizer else "was trained for another tokenizer"
    if not wrong and not set(names) & set(weights.drafters):
        wrong = f"knows none of the drafters {', '.join(names)}"
    if not wrong:
        return weights
    log.warning("drafter policy router %s: the first drafter that serves drafts for every request", wrong)
    return None

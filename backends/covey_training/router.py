"""Trains the learned router (`covey.bandits.drafters.router`) on the bundled prompts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from covey import prompts
from covey.bandits.drafters import router
from covey.bandits.drafters.router import Weights
from covey.contracts.types import Ints
from covey.text.tokenization import tokenizer_digest
from covey_training.architecture import SPECIALISTS

Array = npt.NDArray[np.float64]
STEPS = 400
RATE = 4.0
DECAY = 1e-3
FOLDS = 5
DRAFTERS = tuple(SPECIALISTS[domain] for domain in prompts.DOMAINS)


def run(folder: Path, out: Path) -> None:
    """Train for the tokenizer in `folder`, save, and print the accuracy on prompts left out of training."""
    samples, labels = lessons(Tokenizer.from_file(str(folder / "tokenizer.json")))
    held_out = np.arange(len(labels)) % FOLDS  # of each domain in turn
    right = 0
    for fold in range(FOLDS):
        weights = fit(samples[held_out != fold], labels[held_out != fold])
        right += int((predict(*weights, samples[held_out == fold]) == labels[held_out == fold]).sum())
    print(f"router: {right} of {len(labels)} right, each by a fit that did not see it ({FOLDS} folds)")
    Weights(tokenizer_digest(folder), DRAFTERS, *fit(samples, labels)).save(out)


def lessons(tokenizer: Tokenizer) -> tuple[Array, Ints]:
    """Return the features of every prompt, and the place of its drafter among DRAFTERS."""
    texts: Sequence[list[str]] = [prompts.load(domain) for domain in prompts.DOMAINS]
    ids = [np.asarray(tokenizer.encode(text).ids, np.int32) for each in texts for text in each]
    labels = np.repeat(np.arange(len(texts), dtype=np.int32), [len(each) for each in texts])
    return np.stack([router.features(each) for each in ids]), labels


def fit(samples: Array, labels: Ints) -> tuple[Array, Array]:
    """Return weights and bias that minimise the mean cross-entropy and DECAY / 2 of the weights' squares."""
    matrix, bias = np.zeros((len(DRAFTERS), samples.shape[1])), np.zeros(len(DRAFTERS))
    wanted = np.eye(len(DRAFTERS))[labels]
    for _ in range(STEPS):
        scores = samples @ matrix.T + bias
        likely = np.exp(scores - scores.max(axis=1, keepdims=True))
        wrong = (likely / likely.sum(axis=1, keepdims=True) - wanted) / len(labels)
        matrix -= RATE * (wrong.T @ samples + DECAY * matrix)
        bias -= RATE * wrong.sum(axis=0)
    return matrix, bias


def predict(matrix: Array, bias: Array, samples: Array) -> Ints:
    best: Ints = np.argmax(samples @ matrix.T + bias, axis=1).astype(np.int32)
    return best

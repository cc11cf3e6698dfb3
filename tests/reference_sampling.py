"""Sampling settings the plain way: one row, no cleverness. What the fast implementation is held against."""

from __future__ import annotations

import numpy as np

from covey.contracts.types import Sampling
from covey.noise.noise import Reals


def penalised(logits: Reals, s: Sampling, prompt: list[int], output: list[int]) -> Reals:
    values = logits.astype(np.float64).copy()
    for token, bias in s.logit_bias:
        values[token] += -np.inf if bias <= -100.0 else bias
    for token in set(prompt + output):
        values[token] = (
            values[token] * s.repetition_penalty if values[token] < 0 else values[token] / s.repetition_penalty
        )
    for token in set(output):
        values[token] -= s.presence_penalty + s.frequency_penalty * output.count(token)
    if len(output) < s.min_tokens:
        values[list(s.end_ids)] = -np.inf
    everything = prompt + output
    for word in s.bad_words:
        before = list(word[:-1])
        if everything[len(everything) - len(before) :] == before:
            values[word[-1]] = -np.inf
    return values


def distribution(logits: Reals, s: Sampling, prompt: list[int], output: list[int]) -> Reals:
    """The exact distribution of the next token."""
    values = penalised(logits, s, prompt, output)
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    probs = np.zeros(len(values))
    if s.greedy:
        probs[order[0]] = 1.0
        return probs
    weights = np.exp((values - values.max()) / s.temperature)
    if s.top_k:
        order = order[: s.top_k]
    total, before = weights[order].sum(), 0.0
    kept: list[int] = []
    for token in order:
        if kept and before >= s.top_p * total and s.top_p < 1.0:
            break
        if weights[token] < s.min_p or (kept and s.min_p == 1.0):  # the lowest id of tokens as likely as the best
            break
        kept.append(token)
        before += weights[token]
    probs[kept] = weights[kept] / weights[kept].sum()
    return probs

"""Prompts that are alike: unlabelled domains, found as requests come.

A prompt is the counts of its tokens in buckets, square roots of them, scaled to length 1, so that the cosine of two
prompts is their overlap (Bhattacharyya's). It joins the nearest group, or founds one where none is near; a group is the
sum of its prompts. Each tenant has groups of its own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from covey.types import Ints

BUCKETS = 512
SPREAD = np.uint32(0x9E3779B1)  # odd: neighbouring ids go to buckets far apart
LAST = 256  # tokens of a prompt that are looked at
NEAR = 0.45  # cosine; the five domains of the bundled prompts, of 20 to 80 tokens, are told apart from 0.4 to 0.6
MOST = 16  # groups


class Neighbours:
    """One tenant's groups."""

    def __init__(self) -> None:
        self._sums = np.zeros((0, BUCKETS), np.float32)
        self._norms = np.zeros(0, np.float32)

    def join(self, prompt: Ints) -> int:
        """The group of this prompt, which is part of it from now on."""
        features = _features(prompt)
        near = self._sums @ features / self._norms
        group = int(near.argmax()) if len(near) else 0
        if not len(near) or (near[group] < NEAR and len(near) < MOST):
            group = len(near)
            self._sums = np.vstack([self._sums, features])
            self._norms = np.append(self._norms, np.float32(1.0))
        else:
            self._sums[group] += features
            self._norms[group] = np.linalg.norm(self._sums[group])
        return group


def _features(prompt: Ints) -> npt.NDArray[np.float32]:
    buckets = prompt[-LAST:].astype(np.uint32) * SPREAD >> np.uint32(23)
    counts = np.sqrt(np.bincount(buckets, minlength=BUCKETS)).astype(np.float32)
    scaled: npt.NDArray[np.float32] = counts / np.linalg.norm(counts)
    return scaled

"""Heads: drafters that read the target's states beside its tokens (`covey.models.heads`)."""

from __future__ import annotations

from pathlib import Path

from covey.contracts.profile import DrafterSettings
from covey.drafters.neural import NeuralDrafter


def load(folder: str | Path, target: str | Path, settings: DrafterSettings, *, name: str, depth: int) -> NeuralDrafter:
    """Load the head in `folder`, for the model in `target`, and make it ready to answer at full speed."""
    drafter = NeuralDrafter.load(folder, settings, name=name, depth=depth, target=target)
    drafter.warm_up()
    return drafter

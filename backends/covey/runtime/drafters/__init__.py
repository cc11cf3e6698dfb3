"""Drafters in process, each behind `covey.ports.Drafter`: neural, n-gram, suffix."""

from __future__ import annotations

from pathlib import Path

from covey.errors import SettingError
from covey.ports import Drafter
from covey.profile import Profile
from covey.runtime.drafters.neural import NeuralDrafter


def load_drafter(kind: str, folder: str | Path, profile: Profile, *, name: str) -> Drafter:
    """The drafter of an entry of the model repository, ready to answer at full speed."""
    settings = profile.drafter
    if kind == "neural":
        drafter = NeuralDrafter.load(folder, settings, name=name)
        drafter.warm_up()
        return drafter
    raise SettingError(f"{name}: parameter kind: got {kind!r}, allowed: neural, ngram, suffix")

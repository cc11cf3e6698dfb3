"""Drafters in process, each behind `covey.ports.Drafter`: neural, n-gram, suffix, emulated."""

from __future__ import annotations

from pathlib import Path

from covey import vocabulary
from covey.clock import RealClock
from covey.errors import SettingError
from covey.ports import Drafter
from covey.profile import Profile
from covey.runtime import emulation
from covey.runtime.drafters.ngram import NgramDrafter
from covey.runtime.drafters.suffix import SuffixDrafter


def load_drafter(kind: str, folder: str | Path, target: str | Path, profile: Profile, *, name: str) -> Drafter:
    """The drafter of an entry of the model repository, ready to answer at full speed. `target` is the folder of the
    model that it drafts for; where that has no configuration, whoever asks must compare the vocabularies. For an
    emulated target a neural drafter is emulated too: no model agrees with a hash."""
    if kind == "emulated" or (kind == "neural" and profile.target.kind == "emulated"):
        return emulation.load_drafter(target, profile, RealClock(), name=name)
    settings = profile.drafter
    if kind == "ngram":
        return NgramDrafter(settings, name=name, vocab_size=vocabulary.size(target))
    if kind == "suffix":
        return SuffixDrafter(settings, name=name, vocab_size=vocabulary.size(target))
    if kind != "neural":
        raise SettingError(f"{name}: parameter kind: got {kind!r}, allowed: neural, ngram, suffix, emulated")
    misfit = vocabulary.misfit(folder, target)
    if misfit:
        raise SettingError(f"{name}: {folder} has {misfit}; a drafter must have its target's vocabulary")
    from covey.runtime.drafters.neural import NeuralDrafter  # torch: lookups do without, and start in no time

    drafter = NeuralDrafter.load(folder, settings, name=name, depth=profile.speculation.max_depth)
    drafter.warm_up()
    return drafter

"""Drafters in process, each behind `covey.ports.Drafter`: neural, n-gram, suffix."""

from __future__ import annotations

from pathlib import Path

from covey.errors import SettingError
from covey.ports import Drafter
from covey.profile import Profile
from covey.runtime.drafters.lookup import ANY_VOCABULARY
from covey.runtime.drafters.neural import NeuralDrafter
from covey.runtime.drafters.ngram import NgramDrafter
from covey.runtime.drafters.suffix import SuffixDrafter
from covey.runtime.loading import read_config


def load_drafter(kind: str, folder: str | Path, target: str | Path, profile: Profile, *, name: str) -> Drafter:
    """The drafter of an entry of the model repository, ready to answer at full speed. `target` is the folder of the
    model that it drafts for; where that has no configuration, whoever asks must compare the vocabularies."""
    settings = profile.drafter
    expected = read_config(Path(target)).vocab_size if (Path(target) / "config.json").is_file() else ANY_VOCABULARY
    if kind == "ngram":
        return NgramDrafter(settings, name=name, vocab_size=expected)
    if kind == "suffix":
        return SuffixDrafter(settings, name=name, vocab_size=expected)
    if kind != "neural":
        raise SettingError(f"{name}: parameter kind: got {kind!r}, allowed: neural, ngram, suffix")
    found = read_config(Path(folder)).vocab_size
    if expected not in (ANY_VOCABULARY, found):
        raise SettingError(
            f"{name}: the vocabulary of {folder} has {found} tokens, that of the target in {target} {expected}; "
            "a drafter must have its target's"
        )
    drafter = NeuralDrafter.load(folder, settings, name=name)
    drafter.warm_up()
    return drafter

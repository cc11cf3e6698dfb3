"""Drafters in process, each behind `covey.ports.Drafter`: neural, n-gram, suffix, emulated."""

from __future__ import annotations

import json
from pathlib import Path

from covey.clock import RealClock
from covey.errors import SettingError
from covey.ports import Drafter
from covey.profile import Profile
from covey.runtime import emulation
from covey.runtime.drafters.lookup import ANY_VOCABULARY
from covey.runtime.drafters.ngram import NgramDrafter
from covey.runtime.drafters.suffix import SuffixDrafter


def load_drafter(kind: str, folder: str | Path, target: str | Path, profile: Profile, *, name: str) -> Drafter:
    """The drafter of an entry of the model repository, ready to answer at full speed. `target` is the folder of the
    model that it drafts for; where that has no configuration, whoever asks must compare the vocabularies. For an
    emulated target a neural drafter is emulated too: no model agrees with a hash."""
    if kind == "emulated" or (kind == "neural" and profile.target.kind == "emulated"):
        return emulation.load_drafter(target, profile, RealClock(), name=name)
    settings = profile.drafter
    expected = _vocabulary(target)
    if kind == "ngram":
        return NgramDrafter(settings, name=name, vocab_size=expected)
    if kind == "suffix":
        return SuffixDrafter(settings, name=name, vocab_size=expected)
    if kind != "neural":
        raise SettingError(f"{name}: parameter kind: got {kind!r}, allowed: neural, ngram, suffix, emulated")
    found = _vocabulary(folder)
    if ANY_VOCABULARY not in (expected, found) and expected != found:
        raise SettingError(
            f"{name}: the vocabulary of {folder} has {found} tokens, that of the target in {target} {expected}; "
            "a drafter must have its target's"
        )
    from covey.runtime.drafters.neural import NeuralDrafter  # torch: lookups do without, and start in no time

    drafter = NeuralDrafter.load(folder, settings, name=name, depth=profile.speculation.max_depth)
    drafter.warm_up()
    return drafter


def _vocabulary(folder: str | Path) -> int:
    """How many tokens the folder's model knows, by its configuration."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        return ANY_VOCABULARY
    config = json.loads(path.read_text(encoding="utf-8"))
    return int(config.get("vocab_size") or config.get("text_config", {}).get("vocab_size") or ANY_VOCABULARY)

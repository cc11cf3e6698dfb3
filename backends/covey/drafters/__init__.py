"""Drafters in this process, all as `covey.contracts.ports.Drafter`: neural, n-gram, suffix, emulated. Their queue."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from covey.contracts import registry
from covey.contracts.clock import RealClock
from covey.contracts.errors import SettingError
from covey.contracts.ports import Clock, Drafter
from covey.contracts.profile import DrafterSettings, Profile
from covey.models import heads
from covey.runtimes import budget
from covey.text import vocabulary


@dataclass(frozen=True, slots=True)
class Setting:
    """The values for making a drafter. Its maker's parameters name those that it needs."""

    name: str
    folder: str | Path  # its weights, if it has any
    target: str | Path  # the folder of the model that it drafts for
    profile: Profile
    clock: Clock

    @property
    def settings(self) -> DrafterSettings:
        return self.profile.drafter

    @property
    def vocab_size(self) -> int:
        return vocabulary.size(self.target)

    @property
    def depth(self) -> int:
        """Return the depth that few calls will exceed."""
        return self.profile.speculation.max_depth


def load_drafter(kind: str, folder: str | Path, target: str | Path, profile: Profile, *, name: str) -> Drafter:
    """Return the drafter of a repository entry, ready to answer at full speed. `target` is its target's folder. If that
    folder has no configuration, the caller must compare the vocabularies. For an emulated target, drafters with weights
    are emulated as well: no model agrees with a hash."""
    if kind not in registry.DRAFTERS:
        raise SettingError(f"{name}: parameter kind: got {kind!r}, allowed: {', '.join(registry.DRAFTERS)}")
    chosen = registry.DRAFTERS[kind]
    if chosen.weights and profile.target.emulated:
        chosen = registry.DRAFTERS["emulated"]
    if chosen.weights:
        misfit = vocabulary.misfit(folder, target)
        if misfit:
            raise SettingError(f"{name}: {folder} has {misfit}; a drafter must have its target's tokens")
        if chosen is registry.DRAFTERS[kind] and not profile.drafter.names_size:
            profile = budget.sized(profile, _measure(kind, Path(folder), target, profile))
    drafter: Drafter = registry.make(chosen.made_by, Setting(name, folder, target, profile, RealClock()))
    return drafter


def _measure(kind: str, folder: Path, target: str | Path, profile: Profile) -> budget.Part:
    """Return the model that determines the size of the drafter's pool: the target if its own size is named."""
    own = profile.drafter
    head_of = Path(target) if kind == "head" else None
    if profile.target.names_size:
        product = budget.NO_PRODUCT if head_of is None else heads.read(folder, head_of).fc.shape
        return budget.of_target(target, profile.target, budget.gpu(profile.target.device), product)
    return budget.of_drafter(str(folder), folder, own, budget.gpu(own.device), head_of)

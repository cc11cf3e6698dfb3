"""Opens the target of a profile, in process, as a `covey.contracts.ports.Target`."""

from __future__ import annotations

from pathlib import Path

from covey.contracts.ports import Target
from covey.contracts.profile import Profile
from covey.models import heads
from covey.runtimes import budget
from covey.runtimes.budget import NO_PRODUCT


def load_target(folder: str | Path, profile: Profile, *, name: str, entry: str | Path = "") -> Target:
    """Return the target of a profile. `folder` holds a model's weights and configuration, or an emulated device's
    tokenizer. A head's folder is the one that the profile gives, else next to `entry`, the target's version folder."""
    if profile.target.emulated:
        from covey.contracts.clock import RealClock
        from covey.emulated import opening as emulation

        return emulation.load_target(folder, profile, RealClock())
    from covey.target.runner import TargetRunner, most_blocks, typed

    named = profile.target.head
    head = named and (profile.drafter.folder_of(named) or str(Path(entry or folder).parents[1] / named / "1"))
    elastic, product = profile.memory.policy != "off", NO_PRODUCT
    if head and (elastic or not profile.target.names_size):
        product = heads.read(Path(head), Path(folder)).fc.shape
    if not profile.target.names_size:
        gpu = budget.gpu(profile.target.device)
        profile = budget.sized(profile, budget.of_target(folder, profile.target, gpu, product))
    depth = profile.speculation.max_depth if profile.speculation.drafters else 0
    most = most_blocks(folder, typed(folder, profile.target), product) if elastic else 0
    sizes = {"token_budget": profile.scheduler.token_budget, "depth": depth, "most_blocks": most}
    own = profile.drafter if profile.drafts_ahead else None
    return TargetRunner.load(folder, profile.target, **sizes, name=name, head=head, own=own)

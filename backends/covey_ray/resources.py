"""The resources to ask Ray for, so that a node can run a profile's server."""

from __future__ import annotations

from pathlib import Path

from covey.contracts.profile import Profile
from covey.launcher import bundled, default_model
from covey.launcher.options import Options
from covey.models.identity import files_of
from covey.runtimes.budget import DRAFTER, SERVER

TARGET = "target"


def asks(own: Profile, model: str) -> dict[str, float]:
    """Return `ray_actor_options`. A `model` replaces the profile's target. Unknown sizes count as 0 bytes: the weights
    of a hub model, and KV pools whose size the profile does not give."""
    elsewhere = {entry.split("=", 1)[0] for entry in own.star.servers}
    drafters = [name for name in own.models if name.startswith("draft_") and name not in elsewhere]
    cpus, memory = int(bool(drafters)), SERVER + len(drafters) * (DRAFTER + (own.drafter.kv_memory_mb << 20))
    gpus = 1 if drafters and own.drafter.device == "cuda" else 0
    if TARGET in own.models:
        cpus += max(1, own.target.threads)
        if own.target.device == "cuda":
            gpus = 1
        elif not own.target.emulated:
            options = Options()
            real, pair = bundled.folder(options.state), options.repository_folder() / TARGET / "1"
            folder = Path(model or own.target.folder or (real if default_model.means_real_model(own) else pair))
            memory += (own.target.kv_memory_mb << 20) + sum(path.stat().st_size for path in files_of(folder))
    return {"num_cpus": cpus, "num_gpus": gpus, "memory": memory}

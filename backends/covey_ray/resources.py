"""The resources to ask Ray for, so that a node can run a profile's server."""

from __future__ import annotations

from pathlib import Path

from covey.contracts.profile import Profile
from covey.models.identity import files_of
from covey.server.options import Options

TARGET = "target"
SERVER_MIB, DRAFTER_MIB = 768, 192  # of a server's processes, and of each drafter; measured with the bundled models


def asks(own: Profile, model: str) -> dict[str, float]:
    """Return `ray_actor_options`. A `model` replaces the profile's target. The size of a hub model is unknown here;
    count it as 0 bytes."""
    elsewhere = {entry.split("=", 1)[0] for entry in own.star.servers}
    drafters = [name for name in own.models if name.startswith("draft_") and name not in elsewhere]
    cpus, memory = int(bool(drafters)), SERVER_MIB + len(drafters) * (DRAFTER_MIB + own.drafter.kv_memory_mb)
    gpus = 1 if drafters and own.drafter.device == "cuda" else 0
    if TARGET in own.models:
        cpus += max(1, own.target.threads)
        if own.target.device == "cuda":
            gpus = 1
        elif own.target.kind != "emulated":
            folder = Path(model or own.target.folder or Options().repository_folder() / TARGET / "1")
            memory += own.target.kv_memory_mb + sum(path.stat().st_size for path in files_of(folder)) // (1 << 20)
    return {"num_cpus": cpus, "num_gpus": gpus, "memory": memory << 20}

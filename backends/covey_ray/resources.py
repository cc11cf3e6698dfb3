"""The resources that a profile's server needs of a node, as Ray is asked for them."""

from __future__ import annotations

from pathlib import Path

from covey.contracts.profile import Profile
from covey.models.identity import files_of
from covey.server.options import Options

TARGET = "target"
SERVER_MIB, DRAFTER_MIB = 768, 192  # measured with the bundled models: a server's processes, and each drafter's


def asks(own: Profile, model: str) -> dict[str, float]:
    """Return `ray_actor_options`. `model` stands for the profile's target where it is given; one of the hub's is taken
    to have no weights, as nobody knows here how large they are."""
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

"""Says what models would take of memory, and starts nothing: `python -m covey.launcher --plan 78 ...`."""

from __future__ import annotations

from dataclasses import replace

from covey.contracts.profile import DEFAULT_PROFILE
from covey.launcher import hub, preflight
from covey.launcher.default_model import GPU_PROFILE
from covey.launcher.options import Options
from covey.process.footprint import available
from covey.runtimes import budget

GIB = 1 << 30


def plan(options: Options, free: float) -> str:
    """Return the arithmetic for this machine with a GPU that has `free` GiB; 0: with none. Raises SettingError if the
    deployment is refused there."""
    options = hub.with_folders(options)
    if free and options.model and options.profile == DEFAULT_PROFILE:
        options = replace(options, profile=GPU_PROFILE)
    wanted = preflight.models(options)
    preflight.weights(options, wanted)
    left_out = preflight.left_out(options, wanted)
    gpu = budget.Gpu(int(free * GIB), bfloat16=True)
    parts = preflight.parts_of(options, tuple(name for name in wanted if name not in left_out), gpu)
    chosen = options.deployment()
    room = budget.tokens(parts, {budget.CPU: available(), budget.GPU: gpu.free}, chosen)
    return "\n".join(
        (
            f"profile {options.profile}: takes {chosen.target.memory:g} (target.memory) of the memory that is free",
            *(
                f"{part.name} on {part.device}: weights {part.weights / GIB:.2f} GiB, each token of KV "
                f"{part.token / 1024:g} KiB"
                for part in parts
            ),
            f"room for {room} tokens of KV, and for requests of up to {min(room, parts[0].longest)}",
        )
    )

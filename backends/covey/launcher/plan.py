"""Says what models would take of memory, and starts nothing: `python -m covey.launcher --plan 78 ...`."""

from __future__ import annotations

from covey.launcher import default_model, hub, preflight
from covey.launcher.options import Options
from covey.process.footprint import available
from covey.runtimes import budget

GIB = 1 << 30


def plan(options: Options, free: float) -> str:
    """Return the arithmetic for this machine with a GPU that has `free` GiB; 0: with none. Raises SettingError if the
    deployment is refused there."""
    options = hub.with_folders(default_model.chosen(options, gpu=free > 0))
    wanted = preflight.models(options)
    preflight.weights(options, wanted)
    left_out = preflight.left_out(options, wanted)
    gpu = budget.Gpu(int(free * GIB), bfloat16=True)
    parts = preflight.parts_of(options, tuple(name for name in wanted if name not in left_out), gpu)
    chosen = options.deployment()
    if not parts:
        return f"profile {options.profile}: it loads no weights"
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

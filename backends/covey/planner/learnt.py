"""What a policy has learnt, in a file, so that a restart need not learn it again.

    {"covey_learnt": 1, "policy": "covey", "target": "...", "state": {...}}

`state` is the policy's own. A file of another version, policy or target, or a damaged one, is ignored with a warning:
a planner that starts from nothing is slower for seconds, one that starts from nonsense for longer.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from covey.bandits.length import LengthPolicy

log = logging.getLogger("covey.planner")

VERSION = 1


def save(path: str | Path, policy: LengthPolicy, *, name: str, target: str) -> bool:
    """Write atomically; False when the policy keeps nothing. Raises OSError when it cannot be written."""
    state = policy.state()
    if state is None:
        return False
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f"{path.suffix}.part")
    text = json.dumps({"covey_learnt": VERSION, "policy": name, "target": target, "state": state}, allow_nan=False)
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
    return True


def restore(path: str | Path, policy: LengthPolicy, *, name: str, target: str) -> bool:
    """Whether the policy took the file up. A file that is not there is no reason to warn."""
    path = Path(path)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or found.get("covey_learnt") != VERSION:
            raise ValueError(f"not a file of version {VERSION}")
        for key, expected in (("policy", name), ("target", target)):
            if found.get(key) != expected:
                raise ValueError(f"learnt for {key} {found.get(key)!r}, not {expected!r}")
        policy.restore(found["state"])
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, RecursionError) as error:
        log.warning("learnt state in %s is ignored: %s", path, error)
        return False
    return True

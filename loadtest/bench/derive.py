"""A profile with a few settings changed, as a file that a server can be started with."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from covey.profile import Profile
from covey.types import JsonDict


def derive(profile: Profile, path: Path, **changes: JsonDict | tuple[str, ...]) -> Path:
    """Writes `profile` to `path` with `changes`: a section's settings, or a value of the profile itself."""
    tables: JsonDict = dataclasses.asdict(profile)
    for name, change in changes.items():
        tables[name] = {**tables[name], **change} if isinstance(change, dict) else change
    own = {key: value for key, value in tables.items() if not isinstance(value, dict) and key != "name"}
    sections = {key: value for key, value in tables.items() if isinstance(value, dict)}
    lines = _settings(own)
    for name, values in sections.items():
        lines += ["", f"[{name}]", *_settings(values)]
    path.write_text("\n".join(lines) + "\n")
    return path


def with_drafters(profile: Profile, path: Path, drafters: Sequence[str], **speculation: object) -> Path:
    """As `derive`, with those drafters of the profile alone: no other is loaded or said to lie anywhere."""
    gone = set(profile.speculation.drafters) - set(drafters)
    return derive(
        profile,
        path,
        models=tuple(name for name in profile.models if name not in gone),
        speculation={**speculation, "drafters": list(drafters)},
        drafter={"folders": [entry for entry in profile.drafter.folders if entry.split(":", 1)[0] not in gone]},
    )


def _settings(values: JsonDict) -> list[str]:
    """TOML writes numbers, text, truth and lists of text as JSON does."""
    return [f"{key} = {json.dumps(list(v) if isinstance(v, tuple) else v)}" for key, v in values.items()]

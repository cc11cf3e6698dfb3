"""Writes files to start a server with: a profile with a few changed settings, and secrets."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from covey.contracts.errors import SettingError
from covey.contracts.profile import Profile, load, written
from covey.contracts.types import JsonDict


def drafting(name: str) -> Profile:
    """Return the profile of that name. Raises SettingError if it has no drafter."""
    found = load(name)
    if not found.speculation.drafters:
        raise SettingError(f"profile {found.name}: speculation.drafters is empty; name one that has drafters")
    return found


def derive(profile: Profile, path: Path, **changes: JsonDict | tuple[str, ...]) -> Path:
    """Write `profile` to `path` with `changes`: a section's settings, or a value of the profile itself."""
    tables: JsonDict = dataclasses.asdict(profile)
    del tables["name"]
    for name, change in changes.items():
        tables[name] = {**tables[name], **change} if isinstance(change, dict) else change
    path.write_text(written(tables))
    return path


def private(path: Path, text: str) -> Path:
    """Write a file that only this user can read."""
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_text(text)
    return path.resolve()

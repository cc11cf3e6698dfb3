"""Finds the control groups of this process, which limit a container or a service."""

from __future__ import annotations

from pathlib import Path

GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def around(controller: str, groups: Path = GROUPS, own: Path = OWN) -> list[Path]:
    """Return the folders of this process's control groups that may limit what `controller` counts, from the inside out.
    Version 1 has a tree of groups for each controller, version 2 one for all."""
    try:
        lines = own.read_text().splitlines()
    except OSError:  # no Linux
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controller if controllers else groups
        folder = root / path.lstrip("/")
        found += [each for each in (folder, *folder.parents) if each == root or root in each.parents]
    return found

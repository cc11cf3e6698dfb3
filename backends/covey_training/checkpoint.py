"""Checkpoints that are written whole or not at all, each with its history next to it as JSON for people to read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `path`, and `state["history"]` next to it."""
    write(path, state)
    path.with_suffix(".json").write_text(json.dumps(state["history"], indent=1) + "\n", encoding="utf-8")


def write(path: Path, state: dict[str, Any]) -> None:
    """Write only `path`; if the process is killed meanwhile, the previous file stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def load(path: Path, device: torch.device) -> dict[str, Any] | None:
    """Return the state, or None if there is no checkpoint yet."""
    if not path.is_file():
        return None
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state

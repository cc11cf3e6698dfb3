"""Folders of plain weights that were made of other ones: once, in the server's state, by what they were made of."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from covey.models.identity import identity
from covey.private import private_folder

SMALL = ("*.json", "*.txt", "*.jinja", "*.model")  # what a model's folder has beside its weights


def made(state: Path, kind: str, of: Path, parts: Iterable[Path], build: Callable[[Path], None]) -> Path:
    """The folder of that kind for the model in `of`, which depends on those files; `build` fills it the first time."""
    kept = private_folder(state / kind)
    final = kept / f"{of.resolve().name}-{identity(kind, parts)[:16]}"
    if final.is_dir():
        return final
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=kept))
    try:
        build(building)
        with contextlib.suppress(OSError):  # another server was quicker, with the same weights
            os.rename(building, final)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return final


def matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return [path for pattern in patterns for path in folder.glob(pattern)]


def copy(paths: Iterable[Path], to: Path) -> None:
    for path in paths:
        shutil.copyfile(path, to / path.name)

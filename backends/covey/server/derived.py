"""Folders of plain weights that are derived from other models, once, and kept in the server's state under a digest of
their sources.

One launcher makes them at a time. A folder says what it held when it was made, and one that holds something else is
made again.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from covey.models.identity import identity
from covey.process.private import private_folder, whole_folder
from covey.server.errors import StartError

SMALL = ("*.json", "*.txt", "*.jinja", "*.model")  # what a model's folder has beside its weights
_HELD = ".held"  # the file that says what a folder held
log = logging.getLogger("covey.server")


def derive(state: Path, kind: str, of: Path, parts: Iterable[Path], build: Callable[[Path], None]) -> Path:
    """Return the folder of that kind for the model in `of` and its files `parts`; `build` fills it once."""
    files = sorted(set(parts))
    try:
        when = [(str(path.resolve()), path.stat().st_mtime_ns) for path in files]  # identity() samples large files
        name = f"{of.resolve().name}-{identity([kind, when], files)[:16]}"
        kept = private_folder(state / kind)
        final = kept / name
        if not _whole(final):
            with _alone(kept):
                if not _whole(final):  # another launcher may have made it meanwhile
                    _make(final, build)
    except (OSError, SafetensorError) as error:
        raise StartError(
            f"{of}: no weights can be made of it in {state / kind}: {error}: let this user read it, and write where "
            "there is room"
        ) from error
    return final


def _make(final: Path, build: Callable[[Path], None]) -> None:
    for left in final.parent.glob(".building-*"):  # of launchers that were killed
        shutil.rmtree(left, ignore_errors=True)
    with whole_folder(final) as building:
        build(building)
        (building / _HELD).write_text(json.dumps(_sizes(building)), encoding="utf-8")
        if final.exists():
            log.warning("%s is not what was made: it is made again", final)
            shutil.rmtree(final)


def _whole(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / _HELD).read_text(encoding="utf-8")) == _sizes(folder))
    except (OSError, ValueError):
        return False


def _sizes(folder: Path) -> dict[str, list[int]]:
    """Return the size and the time of change of the folder's files."""
    found = {path.name: path.stat() for path in folder.iterdir() if path.name != _HELD}
    return {name: [each.st_size, each.st_mtime_ns] for name, each in found.items()}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. Waits for other launchers; a killed one lets go."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return [path for pattern in patterns for path in folder.glob(pattern) if path.is_file()]


def copy(paths: Iterable[Path], to: Path) -> None:
    for path in paths:
        shutil.copyfile(path, to / path.name)

"""Writes model folders from GGUF files, each only once. They stay in the state folder, named by the file's path, size
and time."""

from __future__ import annotations

import hashlib
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from os import fdopen
from pathlib import Path

from covey.contracts.errors import SettingError
from covey.gguf import folder as gguf_folder
from covey.launcher.progress import say
from covey.process.lock import lock
from covey.process.private import private_folder

VERSION = 2  # of the written folder; add 1 when covey.gguf writes something else
QUIET_SECONDS = 2.0  # before a line tells what is slow
WAIT_SECONDS = 0.2  # between looks at a lock of another start
MOST_NAME = 80  # letters


def gguf_file(path: Path) -> Path | None:
    """Return the GGUF file of a path: the path itself, or the file in a folder without config.json. None if there is
    none. Raises SettingError if a folder has several."""
    if path.suffix == ".gguf" and not path.is_dir():
        if not path.exists():
            raise SettingError(f"{path}: no such file")
        return path
    if not path.is_dir() or (path / "config.json").exists():
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        raise SettingError(f"{path} has {len(found)} GGUF files, {found[0].name} and others: name the one to serve")
    return found[0] if found else None


def folder(file: Path, state: Path) -> Path:
    """Return the model folder of a GGUF file, written if it is missing."""
    file = file.resolve()
    try:
        seen = file.stat()
    except OSError as error:
        raise SettingError(f"cannot read {file}: {error.strerror}") from error
    key = repr((str(file), seen.st_size, seen.st_mtime_ns, VERSION))
    name = re.sub(r"[^\w.-]", "-", file.stem)[:MOST_NAME].lstrip(".")
    final = models_folder(state) / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if not final.is_dir():
        with alone(final.parent), saying(f"covey: converting {file.name} to safetensors, once, in {final}"):
            if not final.is_dir():  # another start may have written it meanwhile
                gguf_folder.write(file, final)
    return final


def models_folder(state: Path) -> Path:
    """Return the folder of written models, created for this user only."""
    return private_folder(private_folder(state) / "models").resolve()


@contextmanager
def saying(line: str) -> Iterator[None]:
    """Print the line if the block takes more than two seconds."""
    timer = threading.Timer(QUIET_SECONDS, say, (line,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def alone(models: Path) -> Iterator[None]:
    """Wait until no other process writes a model, and remove the remains of a killed one."""
    while (held := lock(models / ".lock")) is None:
        time.sleep(WAIT_SECONDS)
    with closing(fdopen(held)):
        for left in models.glob(".building-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield

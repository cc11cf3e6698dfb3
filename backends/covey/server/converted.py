"""Folders written from GGUF files, each once: they stay in the state folder, by the file's path, size and time."""

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
from covey.process.lock import lock
from covey.process.private import private_folder
from covey.server.progress import say

VERSION = 2  # of what is written; a change of covey.gguf that writes something else adds 1
QUIET_SECONDS = 2.0  # before a line says what takes time
WAIT_SECONDS = 0.2  # between looks at a lock that another start has
MOST_NAME = 80  # letters


def gguf_file(path: Path) -> Path | None:
    """Return the GGUF file that a path names: itself, or the one in a folder without config.json. None if it names
    none. Raises SettingError if a folder has several."""
    if path.suffix == ".gguf" and not path.is_dir():
        if not path.exists():
            raise SettingError(f"{path}: no such file")
        return path
    if not path.is_dir() or (path / "config.json").exists():
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        raise SettingError(f"{path}: has {len(found)} GGUF files, {found[0].name} and others: name the one to serve")
    return found[0] if found else None


def folder(file: Path, state: Path) -> Path:
    """Return the folder with the model of a GGUF file; write it if it is not there."""
    file = file.resolve()
    try:
        seen = file.stat()
    except OSError as error:
        raise SettingError(f"{file}: cannot be read: {error.strerror}") from error
    key = repr((str(file), seen.st_size, seen.st_mtime_ns, VERSION))
    name = re.sub(r"[^\w.-]", "-", file.stem)[:MOST_NAME].lstrip(".")
    final = models_folder(state) / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if not final.is_dir():
        with alone(final.parent), saying(f"covey: {file.name} is written as safetensors, once, to {final}"):
            if not final.is_dir():  # another start may have written it meanwhile
                gguf_folder.write(file, final)
    return final


def models_folder(state: Path) -> Path:
    """Return the folder of written models; makes it, for this user alone."""
    return private_folder(private_folder(state) / "models").resolve()


@contextmanager
def saying(line: str) -> Iterator[None]:
    """Print the line if what is done within takes more than two seconds."""
    timer = threading.Timer(QUIET_SECONDS, say, (line,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def alone(models: Path) -> Iterator[None]:
    """Wait until no other process writes a model, and remove what one that was killed left."""
    while (held := lock(models / ".lock")) is None:
        time.sleep(WAIT_SECONDS)
    with closing(fdopen(held)):
        for left in models.glob(".building-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield

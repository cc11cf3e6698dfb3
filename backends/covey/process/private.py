"""Folders that hold what this user's processes run or believe, and files that hold their secrets."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from covey.contracts.errors import SettingError
from covey_client.files import distrust

KEPT_VARIABLE = "COVEY_KEPT"  # the folder in which a server keeps what outlives it: measured curves, findings of models


def kept_folder(part: str) -> Path | None:
    """Return the part of this server's private folder, which the launcher names; None where none did. Not made yet."""
    named = os.environ.get(KEPT_VARIABLE)
    return Path(named) / part if named else None


def private_folder(path: Path) -> Path:
    """Makes the folder, for this user alone; SettingError when one is there that others own or may change."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return checked(path)


def checked(path: Path) -> Path:
    """Return the folder, which must be there already."""
    reason = distrust(path)
    if reason:
        raise SettingError(reason)
    return path


@contextmanager
def whole_folder(final: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes `final` as a whole or not at all. Another process may be quicker."""
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=final.parent))
    try:
        yield building
        building.chmod(0o755)
        try:
            building.rename(final)
        except OSError:
            if not final.is_dir():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def private_text(path: str | Path) -> str:
    """Return the text of a file. Raises SettingError where it cannot be read, or others may read it."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read()  # of one file, also where it is being replaced
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path}: cannot be read: {error}") from None
    if mode & 0o077:
        raise SettingError(f"{path}: others may read it, and it holds secrets: chmod 600 {path}")
    return text


def lines(text: str, path: str | Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the words of each line of a file's text that has some, beside `#` and what follows it, and where it is."""
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.partition("#")[0].split():
            yield f"{path}, line {number}", words

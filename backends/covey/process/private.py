"""Private folders for code and data that this user's processes trust, and files with secrets."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from covey.contracts.errors import SettingError
from covey_client.files import distrust

KEPT_VARIABLE = "COVEY_KEPT"  # the folder of data that outlives a server: measured curves, findings about models


def kept_folder(part: str) -> Path | None:
    """Return that part of the folder that the launcher names; None without a name. The part may not exist yet."""
    named = os.environ.get(KEPT_VARIABLE)
    return Path(named) / part if named else None


def private_folder(path: Path) -> Path:
    """Create the folder for this user only, and return it. Raises SettingError if others own it or may change it."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return checked(path)


def checked(path: Path) -> Path:
    """Return an existing folder. Raises SettingError if others own it or may change it."""
    reason = distrust(path)
    if reason:
        raise SettingError(reason)
    return path


@contextmanager
def whole_folder(final: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes `final` atomically. Another process may create `final` first."""
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
    """Return the text of a file. Raises SettingError if it cannot be read, or others may read it."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read()  # both of one file, even if it is replaced now
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{path}: cannot be read: {error}") from None
    if mode & 0o077:
        raise SettingError(f"{path} holds secrets, but others may read it: run chmod 600 {path}")
    return text


def lines(text: str, path: str | Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and words of each line of a file's text, without comments (`#`) and empty lines."""
    for number, line in enumerate(text.splitlines(), 1):
        if words := line.partition("#")[0].split():
            yield f"{path}, line {number}", words

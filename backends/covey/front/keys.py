"""API keys: a private file says which tenant owns which key.

A line is `NAME HASH [RATE [REQUESTS]]`. NAME is the tenant of all the owner's requests. HASH is the SHA-256 of the key
in hex. RATE and REQUESTS replace `front.rate` and half of `front.requests` for this key. The file is read for each
request. While it cannot be read, no key is valid, because one may have been revoked. `python -m covey.front.keys NAME`
draws a key and prints its line.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path

from covey.contracts.errors import SettingError
from covey.front.failures import NoKey
from covey.process.private import lines, private_text
from covey_client.errors import Overloaded

SCHEME = "bearer "
UNREAD = "the server cannot read its file of keys now (see its log); try again in 2 s"
MOST_NAME = 256  # bytes, like a tenant's
_HASH = re.compile(r"[0-9a-f]{64}")
log = logging.getLogger("covey.front")


@dataclass(frozen=True)
class Key:
    name: str
    rate: float = 0.0  # requests a second; 0: front.rate
    requests: int = 0  # in flight; 0: half of front.requests


class Keys:
    """The keys of one file."""

    def __init__(self, path: str) -> None:
        """Read the file. Raises SettingError."""
        self._path = Path(path)
        self._text, self._keys = "", dict[str, Key]()  # the file's text and its keys
        self._read()

    def owner(self, authorization: str) -> Key:
        """Return the key in this header of a request. Raises NoKey, or Overloaded if the file cannot be read."""
        try:
            self._read()
        except SettingError as error:
            log.error("%s", error)
            raise Overloaded(UNREAD) from None
        given = authorization[len(SCHEME) :] if authorization.lower().startswith(SCHEME) else ""
        found = self._keys.get(hashed(given.strip()))
        if found is None:
            raise NoKey("authorization: this server wants `Bearer KEY` with a valid key")
        return found

    def named(self, name: str) -> Key | None:
        return next((key for key in self._keys.values() if key.name == name), None)

    def _read(self) -> None:
        """Read the file. Raises SettingError on each call until it can be read."""
        if not self._path.is_file():  # reading a pipe would block all callers
            draw = "`python -m covey.front.keys NAME` draws a key"
            raise SettingError(f"cannot read {self._path}: it is no regular file; {draw}")
        text = private_text(self._path)
        if text != self._text:
            self._text, self._keys = text, parsed(text, self._path)


def hashed(key: str) -> str:
    """Return the key's hash. A plain hash suffices because keys are long and random."""
    return hashlib.sha256(key.encode()).hexdigest()


def parsed(text: str, path: Path) -> dict[str, Key]:
    """Return the keys in a file's text by hash. Raises SettingError."""
    found: dict[str, Key] = {}
    for where, words in lines(text, path):
        try:
            name, digest = words[:2]
            key = Key(name, *(kind(word) for kind, word in zip((float, int), words[2:])))
        except ValueError:
            key, digest = Key(""), ""
        if not _HASH.fullmatch(digest) or len(words) > 4 or not 0 <= key.rate <= 1e6 or key.requests < 0:
            raise SettingError(f"{where}: a line must be NAME HASH [RATE [REQUESTS]], HASH of 64 hexadecimal digits")
        if len(key.name.encode()) > MOST_NAME:
            raise SettingError(f"{where}: the name is longer than {MOST_NAME} bytes")
        if digest in found:
            raise SettingError(f"{where}: the same key as {found[digest].name}'s")
        found[digest] = key
    return found


def main(names: list[str]) -> None:
    """Draw a key for each name, and print it with its line."""
    for name in names:
        key = f"covey-{secrets.token_urlsafe(32)}"
        print(f"{key}\n{name} {hashed(key)}")


if __name__ == "__main__":
    main(sys.argv[1:])

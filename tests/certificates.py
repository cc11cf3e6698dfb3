"""Certificate authorities for tests of TLS, made with openssl."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")


@dataclass(frozen=True)
class Authority:
    """Signs certificates of localhost."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Authority:
        folder.mkdir()
        openssl(folder, "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.crt")
        return cls(folder)

    @property
    def root(self) -> Path:
        return self.folder / "ca.crt"

    def issue(self, name: str) -> tuple[str, str]:
        """Certificate and key."""
        (self.folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl(self.folder, f"req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr")
        sign = f"x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names"
        openssl(self.folder, f"{sign} -out {name}.crt")
        (self.folder / f"{name}.key").chmod(0o600)
        return str(self.folder / f"{name}.crt"), str(self.folder / f"{name}.key")


def openssl(folder: Path, words: str) -> None:
    subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True, timeout=60)

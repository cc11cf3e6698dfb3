"""TLS for both protocols, as section `front` of the profile sets it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]

from covey.contracts.errors import SettingError
from covey.contracts.profile import FrontSettings


@dataclass(frozen=True)
class Tls:
    """The files of the certificate and its key, read once: a change needs a restart of the front."""

    certificate: str
    private_key: str

    @classmethod
    def of(cls, settings: FrontSettings) -> Tls | None:
        """Return the profile's TLS, or None for none. Raises SettingError where it cannot be as it is wanted."""
        files = cls(settings.certificate, settings.private_key)
        if not files.certificate and not files.private_key:
            return None
        if not files.certificate or not files.private_key:
            raise SettingError("front.certificate, front.private_key: give both, or neither")
        files.check()
        return files

    def check(self) -> None:
        try:
            if Path(self.private_key).stat().st_mode & 0o077:
                raise SettingError(f"front.private_key: {self.private_key} can be read by others: chmod 600")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.private_key)
        except OSError as error:  # an SSLError is one
            raise SettingError(f"front: the files of TLS cannot be used: {error}") from None

    def of_uvicorn(self) -> dict[str, Any]:
        return {"ssl_certfile": self.certificate, "ssl_keyfile": self.private_key}

    def of_grpc(self) -> Any:
        pair = Path(self.private_key).read_bytes(), Path(self.certificate).read_bytes()
        return grpc.ssl_server_credentials([pair])

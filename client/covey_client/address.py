"""The address of one of a server's ports and how to reach it."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

NOT_HTTP = "does not speak HTTP: is that the gRPC port? Give the HTTP port (usually 8000)"
NOT_GRPC = "this port does not speak gRPC: is it an HTTP port? Give the gRPC port (usually 8001)"
MOST_PORT = (1 << 16) - 1  # libraries take the rest of a larger one, which is another port


@dataclass(frozen=True)
class Address:
    """`host:port` of one of Triton's ports."""

    host: str
    port: int
    tls: bool = False
    root_certificates: bytes | None = None  # PEM; None: the system's
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(
        cls,
        url: str,
        *,
        port: int,
        tls: bool = False,
        root_certificates: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Address:
        """Read an address from `host:port`, `host` or a URL; `port` is the protocol's usual one."""
        scheme, _, rest = url.rpartition("://")
        if scheme not in ("", "http", "https", "grpc", "grpcs"):
            raise ValueError(f"url: got {url!r}, allowed: host:port, or with http, https, grpc or grpcs before it")
        host, colon, digits = rest.rstrip("/").rpartition(":")
        if not colon or host.endswith(":") or rest.endswith("]"):
            host, digits = rest.rstrip("/"), str(port)
        if not digits.isdecimal() or len(digits) > 5 or not 0 < int(digits) <= MOST_PORT or not host:
            raise ValueError(f"url: got {url!r}, allowed: host:port, a port from 1 to {MOST_PORT}")
        secure = tls or scheme in ("https", "grpcs")
        return cls(host.strip("[]"), int(digits), secure, root_certificates, dict(headers or {}))

    @property
    def target(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def with_port(self, port: int) -> str:
        """Return the URL of another port of the same host."""
        return ("https://" if self.tls else "") + replace(self, port=port).target

    @property
    def loopback(self) -> bool:
        """Return whether the address is this machine; proxies of the environment do not apply to it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def ssl_context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        pem = self.root_certificates.decode() if self.root_certificates is not None else None
        return ssl.create_default_context(cadata=pem)

"""The front under TLS: who trusts its authority comes through, and where it wants certificates, nobody without one."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from covey.errors import SettingError
from covey.front.tls import Tls
from covey.profile import FrontSettings
from covey.server import FREE, Server
from covey.server import front as launcher
from covey.server.front import Front
from covey_client import Client, ConnectionLost

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")
PROFILE = """
models = ["covey", "covey_unary"]
[speculation]
drafters = []
[front]
read_seconds = 1.0
certificate = "{certificate}"
private_key = "{key}"
callers_authorities = "{callers}"
"""


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


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Authority]:
    folder = tmp_path_factory.mktemp("tls")
    return Authority.make(folder / "ours"), Authority.make(folder / "theirs")


@pytest.fixture
def make(
    canned_server: tuple[Server, Any],
    authorities: tuple[Authority, Authority],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[str], Front]]:
    monkeypatch.setattr(launcher, "SILENT_SECONDS", 1.0)
    started: list[Front] = []

    def start(callers: str) -> Front:
        certificate, key = authorities[0].issue("localhost")
        path = tmp_path / "tls.toml"
        path.write_text(PROFILE.format(certificate=certificate, key=key, callers=callers))
        options = replace(canned_server[0].options, front_http_port=FREE, front_grpc_port=FREE, profile=str(path))
        started.append(Front(options, canned_server[0].deaths))
        started[0].start()
        return started[0]

    yield start
    for front in started:
        front.stop()


@pytest.mark.e2e
@needs_openssl
def test_who_trusts_the_front_s_authority_comes_through(
    make: Callable[[str], Front], authorities: tuple[Authority, Authority]
) -> None:
    front = make("")
    ours, theirs = authorities
    pem = ours.root.read_bytes()
    for transport, url in (("grpc", front.grpc_url), ("http", front.http_url)):
        with Client(url, transport=transport, tls=True, root_certificates=pem) as client:  # type: ignore[arg-type]
            assert [chunk.text for chunk in client.stream("count 3")] == ["w0 ", "w1 ", "w2 "]
        for settings in ({"tls": True, "root_certificates": theirs.root.read_bytes()}, {"tls": True}, {}):
            with (
                Client(url, transport=transport, timeout=5, **settings) as client,  # type: ignore[arg-type]
                pytest.raises(ConnectionLost),
            ):
                client.generate("count 1")
    host, _, port = front.http_url.partition(":")
    began = time.monotonic()
    with socket.create_connection((host, int(port)), timeout=10) as silent:
        assert silent.recv(1) == b"", "who shakes no hands is cut off"
    assert time.monotonic() - began < 5
    pid = front.pid
    time.sleep(1.6)  # the launcher's canary speaks TLS as well
    front.check()
    assert front.pid == pid


@pytest.mark.e2e
@needs_openssl
def test_callers_need_a_certificate_where_their_authorities_are_named(
    make: Callable[[str], Front], authorities: tuple[Authority, Authority]
) -> None:
    ours, theirs = authorities
    front = make(str(ours.root))
    mine, foreign = ours.issue("caller"), theirs.issue("caller")

    def over_http(pair: tuple[str, str] | None) -> int:
        context = ssl.create_default_context(cafile=str(ours.root))
        if pair is not None:
            context.load_cert_chain(*pair)
        with urllib.request.urlopen(f"https://{front.http_url}/v2", context=context, timeout=10) as answer:
            return int(answer.status)

    def over_grpc(pair: tuple[str, str] | None) -> int:
        files = (None, None) if pair is None else (Path(pair[1]).read_bytes(), Path(pair[0]).read_bytes())
        with grpc.secure_channel(
            front.grpc_url, grpc.ssl_channel_credentials(ours.root.read_bytes(), *files)
        ) as channel:
            return len(channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=5))

    assert over_http(mine) == 200
    assert over_grpc(mine) == 2
    for pair in (foreign, None):
        with pytest.raises(OSError) as refused:  # an alert, or the end of the connection, whichever is read first
            over_http(pair)
        assert not isinstance(refused.value, urllib.error.HTTPError)
        with pytest.raises(grpc.RpcError):
            over_grpc(pair)
    pid = front.pid
    time.sleep(1.6)
    front.check()
    assert front.pid == pid, "a canary without a certificate is refused, and that is an answer"


@needs_openssl
def test_files_that_cannot_be_used_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "ours")
    certificate, key = authority.issue("localhost")
    assert Tls.of(FrontSettings()) is None
    assert Tls.of(FrontSettings(certificate=certificate, private_key=key)) is not None
    for settings in (
        {"certificate": certificate},
        {"private_key": key},
        {"callers_authorities": str(authority.root)},
        {"certificate": certificate, "private_key": "/nowhere"},
        {"certificate": key, "private_key": key},
        {"certificate": certificate, "private_key": key, "callers_authorities": key},
    ):
        with pytest.raises(SettingError, match="front"):
            Tls.of(FrontSettings(**settings))
    os.chmod(key, 0o640)
    with pytest.raises(SettingError, match="can be read by others"):
        Tls.of(FrontSettings(certificate=certificate, private_key=key))

"""The front under TLS: who trusts its authority comes through."""

from __future__ import annotations

import os
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from covey.contracts.errors import SettingError
from covey.contracts.profile import FrontSettings
from covey.front.tls import Tls
from covey.server import Server
from covey.server import front as launcher
from covey.server.front import Front
from covey_client import Client, ConnectionLost
from tests.certificates import Authority, needs_openssl
from tests.fronts import fronting

PROFILE = """
models = ["covey", "covey_unary"]
[speculation]
drafters = []
[front]
read_seconds = 1.0
certificate = "{certificate}"
private_key = "{key}"
"""


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
) -> Iterator[Callable[[], Front]]:
    monkeypatch.setattr(launcher, "SILENT_SECONDS", 1.0)
    with ExitStack() as started:

        def start() -> Front:
            certificate, key = authorities[0].issue("localhost")
            path = tmp_path / "tls.toml"
            path.write_text(PROFILE.format(certificate=certificate, key=key))
            return started.enter_context(fronting(canned_server[0], profile=str(path)))

        yield start


@pytest.mark.e2e
@needs_openssl
def test_who_trusts_the_front_s_authority_comes_through(
    make: Callable[[], Front], authorities: tuple[Authority, Authority]
) -> None:
    front = make()
    ours, theirs = authorities
    pem = ours.root.read_bytes()
    with Client(front.grpc_url, tls=True, root_certificates=pem) as client:
        assert [chunk.text for chunk in client.stream("count 3")] == ["w0 ", "w1 ", "w2 "]
    for settings in ({"tls": True, "root_certificates": theirs.root.read_bytes()}, {"tls": True}, {}):
        with (
            Client(front.grpc_url, timeout=5, **settings) as client,  # type: ignore[arg-type]
            pytest.raises(ConnectionLost),
        ):
            client.generate("count 1")
    with urllib.request.urlopen(
        f"https://{front.http_url}/v2", context=ssl.create_default_context(cafile=str(ours.root)), timeout=10
    ) as answer:
        assert answer.status == 200
    with pytest.raises(OSError, match="certificate verify failed"):
        urllib.request.urlopen(
            f"https://{front.http_url}/v2", context=ssl.create_default_context(cafile=str(theirs.root)), timeout=10
        )
    host, _, port = front.http_url.partition(":")
    began = time.monotonic()
    with socket.create_connection((host, int(port)), timeout=10) as silent:
        assert silent.recv(1) == b"", "who shakes no hands is cut off"
    assert time.monotonic() - began < 5
    pid = front.pid
    time.sleep(1.6)  # the launcher's canary speaks TLS as well
    front.check()
    assert front.pid == pid


@needs_openssl
def test_files_that_cannot_be_used_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "ours")
    certificate, key = authority.issue("localhost")
    assert Tls.of(FrontSettings()) is None
    assert Tls.of(FrontSettings(certificate=certificate, private_key=key)) is not None
    for settings in (
        {"certificate": certificate},
        {"private_key": key},
        {"certificate": certificate, "private_key": "/nowhere"},
        {"certificate": key, "private_key": key},
    ):
        with pytest.raises(SettingError, match="front"):
            Tls.of(FrontSettings(**settings))
    os.chmod(key, 0o640)
    with pytest.raises(SettingError, match="can be read by others"):
        Tls.of(FrontSettings(certificate=certificate, private_key=key))

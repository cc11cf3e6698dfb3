"""The way to drafters on another server under TLS: who has the right certificates comes through, and nobody else."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from covey.errors import PortError
from covey.server import FREE, Options, Server
from covey.star.callers import token_of
from covey.tritonio.grpc import GrpcModel, Tls
from covey.wire import codec

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl"),
]

SECRET = "secret-of-the-east-server"
PROFILE = """
models = ["controller", "draft_ngram"]

[star]
callers = "{callers}"
"""


@dataclass(frozen=True)
class Authority:
    """Signs what it made a request for."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Authority:
        folder.mkdir()
        openssl(folder, "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.crt")
        return cls(folder)

    @property
    def root(self) -> str:
        return str(self.folder / "ca.crt")

    def issue(self, name: str) -> tuple[str, str]:
        """Certificate and key."""
        (self.folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl(self.folder, f"req -newkey rsa:2048 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr")
        sign = (
            f"x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out {name}.crt"
        )
        openssl(self.folder, sign)
        return str(self.folder / f"{name}.crt"), str(self.folder / f"{name}.key")


def openssl(folder: Path, words: str) -> None:
    subprocess.run(["openssl", *words.split()], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Authority, Authority]]:
    folder = tmp_path_factory.mktemp("tls")
    ours, theirs = Authority.make(folder / "ours"), Authority.make(folder / "theirs")
    callers = folder / "callers"
    callers.touch(0o600)
    callers.write_text(f"east {SECRET}\n")
    profile = folder / "drafters.toml"
    profile.write_text(PROFILE.format(callers=callers))
    certificate, key = ours.issue("localhost")
    flags = {"server-cert": certificate, "server-key": key, "root-cert": ours.root}
    extra = ("--grpc-use-ssl-mutual=true", *(f"--grpc-{name}={value}" for name, value in flags.items()))
    log = folder / "server.log"
    with Server(Options("127.0.0.1", FREE, FREE, FREE, profile=str(profile), log_file=log, extra=extra)) as server:
        yield server, ours, theirs


def asked(server: Server, tls: Tls | None) -> int:
    """How many tokens the drafter's vocabulary has; raises PortError where it could not be asked."""
    model = GrpcModel(f"localhost:{server.options.grpc_port}", "draft_ngram", tls)
    message = codec.pack(codec.INFO_REQUEST)
    codec.seal(message, token_of(SECRET))
    try:
        return codec.decode_drafter_info(model.exchange(message, 5.0)).vocab_size
    finally:
        model.close()


def test_certificates_decide_who_comes_through(served: tuple[Server, Authority, Authority]) -> None:
    server, ours, theirs = served
    mine, foreign = ours.issue("east"), theirs.issue("east")
    assert asked(server, Tls(ours.root, *mine)) >= 0
    for tls in (
        Tls(theirs.root, *mine),  # the server's certificate is not one that we trust
        Tls(ours.root, *foreign),  # ours is not one that it trusts
        Tls(ours.root),  # it wants one
        Tls("", *mine),  # the usual authorities did not sign the server's
        None,  # in the clear
    ):
        with pytest.raises(PortError):
            asked(server, tls)
    assert asked(server, Tls(ours.root, *mine)) >= 0, "strangers did it no harm"

"""The way to drafters on another server under TLS: who has the right certificates comes through, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from covey.contracts.errors import PortError
from covey.launcher import Server
from covey.star.callers import token_of
from covey.tritonio.grpc import GrpcModel, Tls
from covey.wire import codec
from tests.certificates import Authority, needs_openssl
from tests.e2e.serving import served

pytestmark = [pytest.mark.e2e, needs_openssl]

SECRET = "secret-of-the-east-server"
PROFILE = """
models = ["draft_ngram"]

[star]
callers = "{callers}"
"""


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Authority, Authority]]:
    folder = tmp_path_factory.mktemp("tls")
    ours, theirs = Authority.make(folder / "ours"), Authority.make(folder / "theirs")
    callers = folder / "callers"
    callers.touch(0o600)
    callers.write_text(f"east {SECRET}\n")
    certificate, key = ours.issue("localhost")
    flags = {"server-cert": certificate, "server-key": key, "root-cert": str(ours.root)}
    extra = ("--grpc-use-ssl-mutual=true", *(f"--grpc-{name}={value}" for name, value in flags.items()))
    with served(PROFILE.format(callers=callers), folder, extra=extra) as server:
        yield server, ours, theirs


def asked(server: Server, tls: Tls | None, secret: str = SECRET) -> int:
    """How many tokens the drafter's vocabulary has; raises PortError where it could not be asked."""
    model = GrpcModel(f"localhost:{server.options.grpc_port}", "draft_ngram", tls)
    message = codec.pack(codec.INFO_REQUEST)
    codec.seal(message, token_of(secret))
    try:
        return codec.decode_drafter_info(model.exchange(message, 5.0)).vocab_size
    finally:
        model.close()


def test_certificates_and_secrets_decide_who_comes_through(drafters: tuple[Server, Authority, Authority]) -> None:
    server, ours, theirs = drafters
    mine, foreign = ours.issue("east"), theirs.issue("east")
    assert asked(server, Tls(str(ours.root), *mine)) >= 0
    for tls in (
        Tls(str(theirs.root), *mine),  # the server's certificate is not one that we trust
        Tls(str(ours.root), *foreign),  # ours is not one that it trusts
        Tls(str(ours.root)),  # it wants one
        Tls("", *mine),  # the usual authorities did not sign the server's
        None,  # in the clear
    ):
        with pytest.raises(PortError):
            asked(server, tls)
    with pytest.raises(PortError, match="not of this server"):
        asked(server, Tls(str(ours.root), *mine), "secret-of-the-north-server")
    assert asked(server, Tls(str(ours.root), *mine)) >= 0, "strangers did it no harm"

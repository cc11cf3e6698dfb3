"""A drafter that dies and cannot be loaded for a while: speed is lost until it can, and nothing else."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

import covey
from covey.care import processes
from covey.server import FREE_PORTS, Options, Server
from covey_client import Client

pytestmark = pytest.mark.e2e

BACKENDS = Path(covey.__file__).parents[1]
DRAFTER = "draft_ngram"


def backends(folder: Path, forbidden: Path) -> Path:
    """Covey's, with drafters that do not start while `forbidden` is there."""
    for path in BACKENDS.glob("*/model.py"):
        (folder / path.parent.name).mkdir(parents=True)
        shutil.copy(path, folder / path.parent.name)
    drafter = folder / "drafter" / "model.py"
    guard = f"\nif Path({str(forbidden)!r}).exists():\n    raise RuntimeError('forbidden')\n"
    drafter.write_text(drafter.read_text() + guard)
    return folder


@pytest.mark.slow
def test_a_drafter_comes_back_when_it_can_be_loaded_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "covey.revival")
    forbidden = tmp_path / "forbidden"
    options = Options(
        **FREE_PORTS,
        log_file=tmp_path / "tritonserver.log",
        models=("target", "covey", DRAFTER),
        backends=backends(tmp_path / "backends", forbidden),
        model_repository=BACKENDS.parent / "model_repository",
        admin_secret="open sesame",
    )
    settings = {"max_tokens": 60, "min_tokens": 60, "seed": 1, "speculation": "fixed:3", "drafter": DRAFTER}
    with Server(options) as server, Client(server.grpc_url, timeout=60) as client:
        whole = client.generate("one two one two one two", **settings)
        assert whole.usage.draft_tokens
        forbidden.touch()
        os.kill(processes.named(server.pid)[DRAFTER], signal.SIGKILL)
        until = time.monotonic() + 60
        while caplog.text.count(f"{DRAFTER} could not be reloaded") < 2:
            assert client.generate("one two one two one two", **settings).tokens == whole.tokens
            assert time.monotonic() < until, server.log_text()[-2000:]
        forbidden.unlink()
        while not client.generate("one two one two one two", **settings).usage.draft_tokens:
            assert time.monotonic() < until, server.log_text()[-2000:]
            time.sleep(0.2)
        assert f"{DRAFTER} is back" in caplog.text

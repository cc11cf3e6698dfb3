"""The image's health check: as healthy as what it serves."""

from __future__ import annotations

import http.client
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

import covey

HEALTHCHECK = Path(covey.__file__).parents[2] / "docker" / "healthcheck"


@pytest.mark.parametrize(
    ("down", "said"),
    [
        (None, None),
        ((8000, "/v2/health/ready"), "/v2/health/ready on port 8000 answers"),
        ((8000, "/v2/models/covey/ready"), "covey/ready on port 8000 answers"),
        ((8010, "/v2/health/ready"), "/v2/health/ready on port 8010 answers"),
    ],
)
def test_it_follows_the_server_and_the_public_model(
    monkeypatch: pytest.MonkeyPatch, down: tuple[int, str] | None, said: str | None
) -> None:
    class Connection:
        def __init__(self, _host: str, port: int, **_settings: object) -> None:
            self.port, self.status = port, 200

        def request(self, _method: str, path: str) -> None:
            self.status = 400 if (self.port, path) == down else 200

        def getresponse(self) -> SimpleNamespace:
            return SimpleNamespace(status=self.status)

    monkeypatch.setattr(http.client, "HTTPConnection", Connection)
    if said is None:
        runpy.run_path(str(HEALTHCHECK))
        return
    with pytest.raises(SystemExit, match=said):
        runpy.run_path(str(HEALTHCHECK))

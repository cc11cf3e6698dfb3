"""The image's health check: as healthy as what it serves."""

from __future__ import annotations

import http.client
import runpy
import sys
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

        def close(self) -> None:
            """Nothing is open."""

    monkeypatch.setattr(http.client, "HTTPConnection", Connection)
    monkeypatch.setattr(sys, "argv", [str(HEALTHCHECK)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(HEALTHCHECK), run_name="__main__")
    assert (said or "0") in str(ended.value)


def test_a_server_without_covey_is_asked_for_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []
    program = runpy.run_path(str(HEALTHCHECK))
    monkeypatch.setitem(program["problem"].__globals__, "asked", lambda *ask: asked.append(ask) or 200)
    monkeypatch.setenv("COVEY_HEALTH_MODEL", "draft_general")
    assert program["problem"]() == ""
    assert asked == [(8000, "/v2/health/ready"), (8000, "/v2/models/draft_general/ready")]

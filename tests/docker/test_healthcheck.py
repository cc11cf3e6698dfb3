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


ASKED = [(8000, "/v2/health/ready"), (8000, "/v2/models/covey/ready"), (8010, "/v2/health/ready")]


@pytest.mark.parametrize("down", [None, *range(3)])
@pytest.mark.parametrize("model", ["covey", "draft_general"], ids=["whole", "without covey"])
def test_it_follows_the_server_and_the_model_that_it_is_told(
    monkeypatch: pytest.MonkeyPatch, down: int | None, model: str
) -> None:
    asked: list[tuple[int, str]] = []
    wanted = [(port, path.replace("covey", model)) for port, path in ASKED[: 3 if model == "covey" else 2]]

    class Connection:
        def __init__(self, _host: str, port: int, **_settings: object) -> None:
            self.port = port

        def request(self, _method: str, path: str) -> None:
            asked.append((self.port, path))

        def getresponse(self) -> SimpleNamespace:
            return SimpleNamespace(status=400 if len(asked) - 1 == down else 200)

        def close(self) -> None:
            """Nothing is open."""

    if model != "covey":
        monkeypatch.setenv("COVEY_HEALTH_MODEL", model)
    monkeypatch.setattr(http.client, "HTTPConnection", Connection)
    monkeypatch.setattr(sys, "argv", [str(HEALTHCHECK)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(HEALTHCHECK), run_name="__main__")
    if down is None or down >= len(wanted):
        assert (str(ended.value), asked) == ("0", wanted)
    else:
        port, path = wanted[down]
        assert f"{path} on port {port} answers" in str(ended.value)

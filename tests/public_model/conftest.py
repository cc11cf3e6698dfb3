"""Models that are made here end with their test."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covey.process.private import KEPT_VARIABLE
from covey.public_model import life, start
from tests.public_model.worlds import Made, World


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Made]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(KEPT_VARIABLE, raising=False)
    monkeypatch.setattr(life, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(life, "LEAVE_SECONDS", 0.0)
    monkeypatch.setattr(start, "FACTS_SECONDS", 0.1)
    worlds: list[World] = []

    def make(*drafters: str, **settings: Any) -> World:
        worlds.append(World(*drafters, **settings))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()

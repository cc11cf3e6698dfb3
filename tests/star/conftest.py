"""A drafter's folder, and services that are stopped at a test's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from covey.contracts.ports import Drafter
from covey.drafters.service import DraftService
from tests.models import tiny_models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.build(tmp_path_factory.mktemp("shared"), "llama")


@pytest.fixture
def serve() -> Iterator[Callable[..., DraftService]]:
    made: list[DraftService] = []

    def start(drafter: Drafter, **given: Any) -> DraftService:
        made.append(DraftService(drafter, **given))
        return made[-1]

    yield start
    for service in made:
        service.stop()

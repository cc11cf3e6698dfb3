from __future__ import annotations

from pathlib import Path

import pytest

from tests.models import tiny_models


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.build(tmp_path_factory.mktemp("tiny"), "qwen2")

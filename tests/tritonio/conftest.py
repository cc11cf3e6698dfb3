"""Models send the package's log records to Triton's log, and loggers outlive a test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _records_go_where_they_went() -> Iterator[None]:
    logger = logging.getLogger("covey")
    before = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.level, logger.propagate = before

"""Writes the front's log lines to standard error: few of each kind, and never a caller's data. An unexpected exception
is logged by type and place, because its text may quote a prompt."""

from __future__ import annotations

import logging
import traceback

from covey.process.log_about import told
from covey.process.log_rate import Rate


class _Short(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        return told(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        assert isinstance(ei, tuple)
        kind, _, trace = ei
        frames = traceback.extract_tb(trace)
        return f"{kind.__name__} at {frames[-1].filename}:{frames[-1].lineno}" if frames else kind.__name__


class _Few(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self._rate = Rate()

    def filter(self, record: logging.LogRecord) -> bool:
        return self._rate.passes(f"{record.name} {record.msg}", "") is not None


def to_stderr() -> None:
    """Send all log records of this process to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Short("%(name)s: %(message)s"))
    handler.addFilter(_Few())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)

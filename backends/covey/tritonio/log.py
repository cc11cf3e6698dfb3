"""Sends the package's log records to Triton's log, a few of each kind: a client that can cause one can cause many."""

from __future__ import annotations

import logging

import triton_python_backend_utils as pb_utils

from covey.process.log_about import told
from covey.process.log_rate import Rate

RATE = Rate()


class _About(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        return told(super().formatMessage(record))


class _TritonHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = RATE.passes(f"{record.name} {record.msg}", self.format(record))
        if text is None:
            return
        if record.levelno >= logging.ERROR:
            pb_utils.Logger.log_error(text)
        elif record.levelno >= logging.WARNING:
            pb_utils.Logger.log_warn(text)
        else:
            pb_utils.Logger.log_info(text)


def to_triton() -> None:
    """Send the package's records to Triton, at most a few a second: each costs 50 us."""
    logger = logging.getLogger("covey")
    handler = _TritonHandler()
    handler.setFormatter(_About("%(name)s: %(message)s"))
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False

"""Why there is no server.

SettingError (covey.contracts.errors)
 +- StartError      the start cannot succeed; one line that says what to change
     +- Crashed      tritonserver itself crashed meanwhile, and another start may do better
CoveyError (covey.contracts.errors)
 +- ServerDied      it was running and ended by itself
"""

from __future__ import annotations

from covey.contracts.errors import CoveyError, SettingError


class StartError(SettingError):
    """A start that cannot succeed, or did not; the message is one line."""


class Crashed(StartError):
    """tritonserver, or the process of a model, was killed or crashed while it started. On starved cores Triton's locks
    in shared memory give up."""


class ServerDied(CoveyError):
    """tritonserver ended by itself; the message carries the tail of its log."""

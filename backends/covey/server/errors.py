"""The errors of a server that does not start, or has ended.

SettingError (covey.contracts.errors)
+- StartError      the start cannot succeed; one line that says what to change
   +- Crashed      tritonserver itself crashed meanwhile, and another start may do better
CoveyError (covey.contracts.errors)
+- ServerDied      it was running and ended by itself
"""

from __future__ import annotations

from covey.contracts.errors import CoveyError, SettingError


class StartError(SettingError):
    """The start cannot succeed, or did not; the message is one line."""


class Crashed(StartError):
    """tritonserver or a model's process was killed or crashed during the start. On starved cores Triton's locks in
    shared memory time out."""


class ServerDied(CoveyError):
    """tritonserver ended by itself; the message carries the tail of its log."""

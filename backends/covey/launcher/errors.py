"""Errors of a server that does not start or has ended.

SettingError (covey.contracts.errors)
+- StartError      The start cannot succeed. One line says what to change.
   +- Crashed      tritonserver itself crashed. Another start may succeed.
CoveyError (covey.contracts.errors)
+- ServerDied      It was running and ended by itself.
"""

from __future__ import annotations

from covey.contracts.errors import CoveyError, SettingError


class StartError(SettingError):
    """The start cannot succeed or has failed. The message is one line."""


class Crashed(StartError):
    """tritonserver or a model's process was killed or crashed during the start. On overloaded cores Triton's locks in
    shared memory time out."""


class ServerDied(CoveyError):
    """tritonserver ended by itself. The message carries the tail of its log."""

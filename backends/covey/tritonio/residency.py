"""Implements `covey.contracts.ports.Residency` by model control of this server."""

from __future__ import annotations

from contextlib import suppress

from covey.contracts.errors import CoveyError, PortError
from covey.contracts.types import DrafterInfo
from covey.supervision.calls import Calls
from covey.supervision.control import InnerControl
from covey.tritonio import bls


class TritonResidency:
    """Implements `covey.contracts.ports.Residency`. A drafter itself reports the bytes that it holds."""

    def __init__(self, control: InnerControl, calls: Calls) -> None:
        self._control, self._calls = control, calls

    def unload(self, name: str) -> int:
        held = 0
        with suppress(PortError):  # it has died, or an earlier try has unloaded it
            held = self._drafter(name).info().resident_bytes
        self._control.release(name)
        return held

    def load(self, name: str) -> DrafterInfo:
        try:
            self._control.load(name)
            return self._drafter(name).info()
        except CoveyError:
            with suppress(CoveyError):  # a dead one must be unloaded before it can be loaded
                self._control.release(name)
            raise

    def _drafter(self, name: str) -> bls.BlsDrafter:
        return bls.BlsDrafter(name, self._calls)

"""`covey.ports.Residency` by the controller model of this server."""

from __future__ import annotations

import time
from contextlib import suppress

from covey.errors import PortError
from covey.ports import Ports
from covey.tritonio import bls
from covey.tritonio.stuck import Stuck
from covey.types import DrafterInfo, ResizeStatus

RESIZE_SECONDS, LOOK_SECONDS = 30.0, 0.01  # for pages to come or go; between looks


class BlsResidency:
    """Implements `covey.ports.Residency`. A drafter says itself what it holds."""

    def __init__(self, controller: str, ports: Ports, stuck: Stuck) -> None:
        self._controller, self._ports, self._stuck = controller, ports, stuck

    def unload(self, name: str) -> int:
        held = 0
        with suppress(PortError):  # it has died, or is gone since an earlier try
            held = self._ports.drafter(name).info().resident_bytes
        bls.control(self._controller, "release", name)
        return held

    def load(self, name: str) -> DrafterInfo:
        try:
            bls.control(self._controller, "load", name)
            return self._ports.drafter(name).info()
        except PortError:
            with suppress(PortError):  # one that died stays dead until it has been unloaded
                bls.control(self._controller, "release", name)
            raise

    def resize(self, name: str, blocks: int) -> DrafterInfo:
        drafter, deadline = bls.BlsDrafter(name, self._stuck), time.monotonic() + RESIZE_SECONDS
        while (answer := drafter.resize(blocks)).status is ResizeStatus.LATER and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
        if answer.status is not ResizeStatus.OK:
            raise PortError(f"{name}: KV memory of {blocks} blocks: {answer.status.name}, it has {answer.total_blocks}")
        return drafter.info()

"""The ranks as a layer sees them: sums, gathers and decisions that all take part in, in the same order.

Built on a process group of its own, not on torch's default one: that is one per process and read from the environment.
Knows nothing of models or of how ranks are started.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from covey.contracts.errors import RankDied

PATIENCE = timedelta(seconds=60)  # for the slowest rank; one that died is noticed at once


class Group:
    """This process's place among `size` ranks. They meet by a file in `folder`: no port is open but on loopback."""

    def __init__(self, rank: int, size: int, folder: Path, device: torch.device, ready: Callable[[], None]) -> None:
        self.rank, self.size, self.device = rank, size, device
        self.ordered = False
        self._folder, self._ready = folder, ready
        self._ranks: Any = None

    def join(self) -> None:
        """Meet the others, once weights are loaded: from here on a rank waits for another only for moments."""
        self._ready()
        distributed: Any = torch.distributed
        store = distributed.FileStore(str(self._folder / "ranks"), self.size)
        store.set_timeout(PATIENCE)
        if self.device.type == "cuda":
            options = distributed.ProcessGroupNCCL.Options()
            options._timeout = PATIENCE
            kind = distributed.ProcessGroupNCCL
        else:
            kind = distributed.ProcessGroupGloo
            options = kind._Options()
            options._timeout = PATIENCE
            options._devices = [kind.create_device(hostname="127.0.0.1")]
        try:
            self._ranks = kind(store, self.rank, self.size, options)
        except RuntimeError as error:
            raise RankDied(f"rank {self.rank} of {self.size} found not all others: {error}") from error
        self.agree(True)

    def agree(self, verdict: bool) -> bool:
        """Return whether all ranks say yes. Every rank must decide alike what decides which passes follow."""
        votes = self._collect(torch.tensor([[int(verdict)]], dtype=torch.int32, device=self.device))
        return bool(votes.min())

    def sum(self, part: torch.Tensor) -> torch.Tensor:
        """Return the ranks' parts added up. Where `ordered`, in their order, the same for every element: libraries add
        in an order that depends on where in the message an element stands, thus on what else is in the pass."""
        part = part.contiguous()
        if not self.ordered:
            self._wait(lambda: self._ranks.allreduce([part]))
            return part
        parts = self._collect(part)
        wide = part.dtype if part.dtype == torch.float64 else torch.float32
        total = parts[0].to(wide)
        for other in parts[1:]:
            total = total + other
        return total.to(part.dtype)

    def gather(self, part: torch.Tensor, width: int) -> torch.Tensor:
        """Return the ranks' last dimensions joined; what goes beyond `width` is padding of the last one's."""
        parts = self._collect(part.contiguous())
        return parts.movedim(0, -2).flatten(-2)[..., :width]

    def abort(self) -> None:
        """End what waits on a device for a rank that is gone. Other waits end by themselves. Any thread."""
        if self.device.type == "cuda":
            ranks, self._ranks = self._ranks, None
            if ranks is not None:
                ranks.abort()

    def _collect(self, part: torch.Tensor) -> torch.Tensor:
        parts = part.new_empty((self.size * part.shape[0], *part.shape[1:]))
        self._wait(lambda: self._ranks._allgather_base(parts, part))
        return parts.view(self.size, *part.shape)

    def _wait(self, begin: Callable[[], Any]) -> None:
        try:
            begin().wait()
        except RuntimeError as error:
            raise RankDied(f"rank {self.rank} of {self.size} lost the others: {error}") from error

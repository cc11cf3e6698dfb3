"""A paged model over several devices, as one: what `PagedModel` does, done on all ranks in step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch

from covey.contracts.errors import RankDied, SettingError
from covey.contracts.types import Ints
from covey.models import loading
from covey.models.lanes import Pass
from covey.models.model import PagedModel
from covey.models.parallel.group import Group
from covey.models.parallel.plan import share_of_heads
from covey.models.parallel.processes import Followers


class ParallelModel:
    """Rank 0 of `ranks`, and who the others obey. After a failure every call raises RankDied: ranks that are not in
    step cannot go on."""

    windows = False  # reads lanes
    whole: Literal[False] = False  # other processes have parts of it

    def __init__(
        self,
        folder: str | Path,
        *,
        ranks: int,
        dtype: str = "auto",
        device: str = "auto",
        blocks: int,
        block_size: int = 16,
        numerics: str = "auto",
        max_pass_tokens: int = 512,
    ) -> None:
        folder = Path(folder)
        config = loading.read_config(folder)
        loading.check_config(folder, config)
        share_of_heads(folder, config, ranks)
        chosen = loading.choose_device(device)
        check_devices(chosen, ranks)
        order = {
            "source": str(folder),
            "dtype": str(loading.choose_dtype(dtype, chosen)).removeprefix("torch."),
            "device": chosen.type,
            "blocks": blocks,
            "block_size": block_size,
            "numerics": numerics,
            "max_pass_tokens": max_pass_tokens,
        }
        self._lost = False  # one has ended; set by the thread that watches them
        self._failure = ""  # why nothing goes on
        self._group: Group | None = None
        self.ranks, self.block_size, self.blocks = ranks, block_size, blocks
        self.most_blocks = blocks  # ranks would have to grow in step
        self._followers = Followers(
            ranks, {"device": chosen.type, "threads": torch.get_num_threads(), "model": order}, self._on_loss
        )
        place = torch.device("cuda", 0) if chosen.type == "cuda" else chosen
        try:
            self._group = Group(0, ranks, self._followers.folder, place, self._followers.wait_loaded)
            self._model = PagedModel(**order, group=self._group)  # type: ignore[arg-type]
        except RankDied as error:
            death = self._followers.death()
            self.close()
            if death is None:
                raise
            raise death from error
        except BaseException:
            self.close()
            raise
        self.vocab_size, self.max_positions = self._model.vocab_size, self._model.max_positions
        self.end_ids, self.numerics, self.dtype = self._model.end_ids, self._model.numerics, self._model.dtype
        self.device = f"{chosen.type} x {ranks}"

    @property
    def processes(self) -> list[int]:
        """Return the other ranks' processes."""
        return self._followers.processes

    def forward(self, work: Pass) -> torch.Tensor:
        self._model.check(work)  # before the others begin what this one would refuse
        self._tell("forward", work)
        try:
            logits = self._model.forward(work)
            if logits.is_cuda:
                torch.cuda.current_stream(logits.device).synchronize()  # a loss ends the wait, and leaves no logits
        except Exception as error:
            raise self._fail(error) from error
        if self._lost:
            raise self._fail("one has ended")
        return logits

    def copy_slots(self, source: Ints, destination: Ints) -> None:
        self._tell("copy_slots", source, destination)
        self._model.copy_slots(source, destination)

    def clear_slots(self, slots: Ints) -> None:
        self._tell("clear_slots", slots)
        self._model.clear_slots(slots)

    def close(self) -> None:
        """End the other ranks; returns when they are gone."""
        if self._group is not None:
            self._group.abort()
        self._followers.close()

    def _tell(self, method: str, *given: Any) -> None:
        """Have the other ranks call a method of their models."""
        if self._lost or self._failure:
            raise self._fail("one has ended")
        try:
            self._followers.tell((method, given))
        except RankDied as error:
            raise self._fail(error) from error

    def _fail(self, error: Exception | str) -> RankDied:
        """Return the error to raise from now on: the first cause, not how other ranks ended after it."""
        if not self._failure:
            death = self._followers.death()
            self._failure = str(death or f"the ranks are not in step any more: {error}")
            self.close()
        return RankDied(self._failure)

    def _on_loss(self) -> None:
        self._lost = True
        if self._group is not None:
            self._group.abort()


def check_devices(device: torch.device, ranks: int) -> None:
    if device.type == "cuda" and torch.cuda.device_count() < ranks:
        raise SettingError(
            f"target.tensor_parallel: got {ranks}, but torch sees {torch.cuda.device_count()} GPU: allowed: up to "
            "as many as there are"
        )

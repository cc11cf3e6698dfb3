"""A model of the plain families over a paged pool: tokens in, logits out. It has the interface of `PagedModel`.

This module knows no requests, block owners or sampling, and imports no torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llvmlite
import numba
import numpy as np

from covey.contracts.errors import SettingError, UnsupportedModel
from covey.contracts.types import Floats, Ints, Words
from covey.models.agreement import Room, passes_agree
from covey.models.identity import identity
from covey.models.lanes import Pass, Stop
from covey.models.native import KINDS, amx, architecture, compiled
from covey.models.native.architecture import Architecture
from covey.models.native.attention import SLOTS
from covey.models.native.chains import chain
from covey.models.native.contenders import contenders
from covey.models.native.passes import MADE, Passes
from covey.models.native.stages import run
from covey.models.native.states import make
from covey.models.native.words import leave_compiler
from covey.models.stepper import Race
from covey.models.verdicts import verdict
from covey.noise import noise
from covey.process import cpu
from covey.process.private import kept_folder
from covey.process.worker import Thread

if TYPE_CHECKING:
    from covey.models.heads import Taps

TRIED = 64  # blocks in which passes are compared


@dataclass(frozen=True, slots=True)
class Found:
    """The verdict that passes are invariant."""


class NativeModel:
    """One model and its pool of `blocks` blocks of 32 slots; not safe to call from two threads at once."""

    windows = False  # reads lanes
    block_size = SLOTS
    device = "cpu"

    def __init__(
        self,
        folder: str | Path | Architecture,
        *,
        dtype: str,
        blocks: int,
        threads: int,
        numerics: str = "auto",
        max_pass_tokens: int = 512,
        most_blocks: int = 0,
        taps: Taps | None = None,
        columns: Ints | None = None,
    ) -> None:
        """Load the model. The pool may grow to `most_blocks`. With `taps`, passes keep the values that states are made
        from in their tokens' slots. `columns` are the tokens of the logits if these are not all. Raises
        UnsupportedModel if the model is of another family, or if nothing can be compiled for this CPU."""
        if dtype not in KINDS:
            raise SettingError(f"dtype: got {dtype!r}, the native runtime computes in: {', '.join(KINDS)}")
        self._of = of = folder if isinstance(folder, Architecture) else architecture.read(Path(folder))
        self.dtype, self.max_pass_tokens, self.threads = dtype, max_pass_tokens, threads
        self.vocab_size, self.max_positions, self.end_ids = of.vocab_size, of.max_positions, of.end_ids
        cpu.check()
        if reason := compiled.ensure([compiled.variant_of(of, dtype)]):
            raise UnsupportedModel(f"the native runtime cannot compute it: {reason}")
        self._passes = passes = Passes(
            of,
            dtype,
            blocks=blocks,
            threads=threads,
            most_tokens=max_pass_tokens,
            most_blocks=most_blocks,
            taps=taps,
            columns=columns,
        )
        self.weight_type, self.pool, self.state_width = passes.weight_type, passes.pool, passes.state_width
        self.unread, self.outputs = passes.unread, passes.outputs
        self._helpers = [Thread(f"compute-{number}") for number in range(1, threads)]
        self.padding_slot = self.pool.padding_slot
        self.copy_slots, self.clear_slots = self.pool.copy_slots, self.pool.clear_slots
        self.move_blocks = self.pool.reserve.move_blocks
        self.grow, self.shrink = self.pool.reserve.grow, self.pool.reserve.shrink
        self.bytes_per_block, self.most_blocks = self.pool.reserve.bytes_per_block, self.pool.reserve.most
        self.numerics = "fast"
        self._settle(numerics)
        noise.use(contenders)

    def _settle(self, numerics: str) -> None:
        """Run a first pass, and prove that passes are invariant unless `numerics` is "fast"."""
        self.forward(self.unread())
        if self.state_width:
            self.states(np.array([self.padding_slot], np.int32))
        if numerics != "fast" and self._agrees():
            self.numerics = "invariant"
        elif numerics == "invariant":
            raise SettingError(
                f"numerics: its passes in {self.dtype} are not invariant on this CPU; use target.runtime "
                "torch with dtype auto, or numerics auto or fast"
            )
        leave_compiler()

    @property
    def blocks(self) -> int:
        """Return how many blocks there are now. Ids below this number may be used."""
        return self.pool.reserve.blocks

    def forward(self, work: Pass) -> Floats:
        """Return logits [len(out), vocab] in float32, which the next pass overwrites; write keys and values."""
        given = self._passes.of_pass(work)
        self._together(run, given)
        logits: Floats = given[-1]
        return logits

    def forward_until(self, work: Pass, stop: Stop) -> Floats | None:
        """Do as `forward` does. Return None soon after `stop` is set; keys and values are then written in part."""
        given = self._passes.of_pass(work, stop)
        helped = self._together(run, given)
        if not stop[0]:
            logits: Floats = given[-1]
            return logits
        for each in helped:  # another pass must not begin while they finish their last tasks
            each.result()
        return None

    def chain(self, first: Pass, slots: Ints, positions: Ints, race: Race) -> tuple[Ints, Floats]:
        """Draw a chain after each row's last token of a pass. `slots` and `positions` [rows, depth - 1]
        are those of the tokens that it goes on with. Return tokens and the logs of their shares, [rows, depth]."""
        given = self._passes.of_chain(first, slots, positions, race)
        self._together(chain, given)
        tokens, shares = given[-2:]
        return tokens, shares

    def _together(self, loops: Callable[..., None], given: tuple[Any, ...]) -> list[Future[None]]:
        """Run compiled loops in all threads. The first argument is the first thread's place in the team. Return the
        other threads' parts."""
        team, *others = given
        helped = [
            helper.submit(_help, (loops, team._replace(thread=number), *others))
            for number, helper in enumerate(self._helpers, start=1)
        ]
        loops(*given)
        return helped

    def prepare_chains(self) -> None:
        """Draw a first chain, so that its code is compiled and loaded."""
        slot = np.array([[self.padding_slot]], np.int32)
        self.chain(self.unread(), slot, np.zeros_like(slot), Race(np.zeros(1), np.ones((2, 3, 1), np.int32)))
        leave_compiler()

    def states(self, slots: Ints) -> Words:
        """Return the states [slots, width] of the tokens in these slots."""
        found = [self._states(slots[first : first + MADE]) for first in range(0, len(slots), MADE)]
        return found[0] if len(found) == 1 else np.concatenate([*found, np.zeros((0, self.state_width), np.uint16)])

    def _states(self, slots: Ints) -> Words:
        given = self._passes.of_states(slots)
        self._together(make, given)
        states: Words = given[-1]
        return states

    def _agrees(self) -> bool:
        """Return whether passes are invariant, as they are meant to be; the verdict is kept."""
        facts = asdict(replace(self._of, weights={}, end_ids=()))
        limits = self.max_pass_tokens, self.threads, self.dtype
        key = identity([facts, limits, self.weight_type, code()])
        return verdict(kept_folder("numerics"), key, self._try, Found) is not None

    def _try(self) -> Found | None:
        room = Room(self.vocab_size, self.max_positions, min(self.blocks, TRIED), SLOTS, self.max_pass_tokens)
        agree = passes_agree(lambda work: self.forward(work).copy(), room)
        self.pool.reserve.clear()
        return Found() if agree else None


def _help(given: tuple[Any, ...]) -> None:
    loops, *others = given
    loops(*others)


def code() -> list[object]:
    """Return data that identifies the code and compiler of passes, on which results and timings depend."""
    files = sorted([*Path(__file__).parent.glob("*.py"), Path(__file__).parents[1] / "agreement.py"])
    texts = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    return [numba.__version__, llvmlite.__version__, sorted(cpu.features()), amx.allowed(), texts]

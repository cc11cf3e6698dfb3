"""A drafter that can be held, senders to its service, and calls in threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from covey.contracts.errors import CoveyError
from covey.contracts.ports import Drafter
from covey.contracts.profile import DrafterSettings
from covey.contracts.types import DrafterInfo, DraftReply, DraftWork
from covey.drafters.neural import NeuralDrafter
from covey.drafters.service import DraftService
from covey.wire.ledger import new_origin
from tests.drafters.drafting import Sender
from tests.waiting import until

VOCABULARY = 97


def neural(folder: Path, blocks: int = 80) -> NeuralDrafter:
    return NeuralDrafter.load(folder, DrafterSettings(kv_blocks=blocks, dtype="float32"), name="draft")


class Held:
    """A drafter whose calls wait until they are let go, and that notes which came together."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.together: list[int] = []
        self.gate = threading.Event()
        self.inside = threading.Event()
        self.failure: CoveyError | None = None

    def info(self) -> DrafterInfo:
        return self.drafter.info()

    def draft(self, work: DraftWork) -> DraftReply:
        return self.draft_together([work])[0]

    def draft_together(self, works: Sequence[DraftWork]) -> list[DraftReply]:
        self.together.append(len(works))
        self.inside.set()
        assert self.gate.wait(30)
        if self.failure is not None:
            raise self.failure
        made: list[DraftReply] = self.drafter.draft_together(works)  # type: ignore[attr-defined]
        return made


class From:
    """One server's way to the service, as `Sender` has it."""

    def __init__(self, service: DraftService, name: str) -> None:
        self.service, self.name = service, name

    def info(self) -> DrafterInfo:
        return self.service.info()

    def draft(self, work: DraftWork) -> DraftReply:
        return self.service.draft(work, self.name)


def prompt(rng: np.random.Generator, length: int) -> list[int]:
    return [int(token) for token in rng.integers(3, VOCABULARY, length)]


def senders(service: DraftService, *names: str) -> list[Sender]:
    """Senders to the service, each of a server of its own."""
    return [Sender(From(service, name), new_origin(name)) for name in names]


def later(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Call in a thread of its own; the list gets the answer, or the error."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(call())
        except CoveyError as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


def answer(begun: tuple[threading.Thread, list[Any]]) -> Any:
    """Return what a call that `later` began is answered."""
    thread, found = begun
    thread.join(30)
    assert not thread.is_alive(), "it hangs"
    return found[0]


def joined(held: Held, service: DraftService, first: Callable[[], Any], *rest: Callable[[], Any]) -> list[Any]:
    """Return the answers to a call that finds the drafter idle, and to those that come while it is busy."""
    held.gate.clear()
    held.inside.clear()
    begun = [later(first)]
    assert held.inside.wait(10)
    begun += [later(call) for call in rest]
    until(lambda: len(service._queue) == len(rest))
    held.gate.set()
    return [answer(each) for each in begun]

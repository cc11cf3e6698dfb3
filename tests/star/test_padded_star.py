"""A shared drafter whose outputs are padded to another size than those of a target elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from covey.contracts.types import DraftWork, Floats, Ints, Rule, Sampling
from covey.drafters.neural import NeuralDrafter
from covey.drafters.service import DraftService
from covey.models.paged_stepper import NativeStepper
from covey.models.stepper import Race
from covey.noise.noise import Index
from covey.star.callers import token_of
from covey.star.remote import RemoteDrafter
from covey.wire.ledger import new_origin
from tests.drafters.drafting import Sender, Text, rows_of
from tests.models.tiny_models import padded
from tests.star.serving import VOCABULARY, neural
from tests.star.test_remote import SECRET, There, up

SAMPLINGS = (
    Sampling(),
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=1.0, top_k=9, logit_bias=((5, 3.0),), seed=2),
    Sampling(temperature=1.0, rule=Rule.REJECTION, seed=3),
)


class Neural(There):
    """A drafters' server with a model."""

    def __init__(self, drafter: NeuralDrafter) -> None:
        self._neural = drafter
        super().__init__()

    def start(self) -> None:
        self.service = DraftService(self._neural)


def outcome(sender: Sender) -> list[object]:
    """Proposals for texts all over the target's vocabulary."""
    rng, found = np.random.default_rng(3), list[object]()
    texts = [Text(tag, rng.integers(0, VOCABULARY, 20).tolist(), each) for tag, each in enumerate(SAMPLINGS)]
    for turn in range(6):
        reply = sender.send(texts, 3, 1 + turn % 2)
        assert not reply.status.any()
        found += [rows_of(reply.trees), reply.trees.scores.round(3).tolist()]
        for text, own in zip(texts, rows_of(reply.trees)):
            text.tokens += [*own[: turn % 3], VOCABULARY - 1 - turn]
    return found


@contextmanager
def remote(there: Neural) -> Iterator[RemoteDrafter]:
    drafter = RemoteDrafter([there], token_of(SECRET), name="draft_remote", vocab_size=VOCABULARY, deadline=60.0)
    try:
        up(drafter)
        yield drafter
    finally:
        drafter.close()


@pytest.mark.parametrize("size", [VOCABULARY - 9, VOCABULARY + 13])
def test_it_drafts_as_one_of_the_target_s_own_size(size: int, folder: Path, tmp_path: Path) -> None:
    with remote(Neural(neural(padded(tmp_path / "padded", folder, size)))) as drafter:
        assert (drafter.info().model, drafter.info().vocab_size) == ("draft_remote", min(size, VOCABULARY))
        found = outcome(Sender(drafter, new_origin("a")))
    own = Sender(neural(folder if size > VOCABULARY else tmp_path / "padded"))
    assert found == outcome(own)


def chains(sender: Sender) -> list[list[int]]:
    rng = np.random.default_rng(4)
    texts = [Text(tag, rng.integers(0, VOCABULARY, 20).tolist(), Sampling(3.0, seed=tag)) for tag in range(12)]
    return rows_of(sender.send(texts, 8).trees)


def test_a_larger_one_still_draws_whole_chains_in_one_call(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    larger = padded(tmp_path / "padded", folder, VOCABULARY + 13)
    drawn, whole = list[int](), NativeStepper.chain

    def counted(self: NativeStepper, pending: Index, race: Race) -> tuple[Ints, Floats] | None:
        drawn.append(len(pending))
        return whole(self, pending, race)

    with remote(Neural(neural(larger))) as drafter:
        monkeypatch.setattr(NativeStepper, "chain", counted)
        found = chains(Sender(drafter, new_origin("a")))
        assert drawn == [12]
    assert found == chains(Sender(neural(folder)))
    assert max(map(max, chains(Sender(neural(larger))))) >= VOCABULARY, "it would propose others"


def test_senders_with_targets_of_different_sizes_share_it(folder: Path, tmp_path: Path) -> None:
    larger = padded(tmp_path / "padded", folder, VOCABULARY + 13)
    sizes = VOCABULARY, 0, VOCABULARY - 9

    def works() -> list[DraftWork]:
        rng = np.random.default_rng(4)
        texts = [
            [Text(tag, rng.integers(0, 80, 20).tolist(), Sampling(3.0, seed=tag)) for tag in range(5)] for _ in sizes
        ]
        return [
            replace(Sender(shared, new_origin(str(size))).work(own, 6), vocab_size=size)
            for own, size in zip(texts, sizes)
        ]

    shared = neural(larger)
    together = [rows_of(reply.trees) for reply in shared.draft_together(works())]
    assert together == [rows_of(neural(larger).draft(work).trees) for work in works()]
    largest = [max(map(max, rows)) for rows in together]
    assert largest[0] < VOCABULARY <= largest[1]
    assert largest[2] < VOCABULARY - 9

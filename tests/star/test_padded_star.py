"""A shared drafter whose outputs are padded to another size than those of a target elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from covey.contracts.types import Rule, Sampling
from covey.drafters.neural import NeuralDrafter
from covey.star.callers import token_of
from covey.star.remote import RemoteDrafter
from covey.star.service import DraftService
from covey.wire.ledger import new_origin
from tests.drafters.drafting import Sender, Text, hits_of, rows_of
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
    """Proposals and judgements of texts all over the target's vocabulary."""
    rng, found = np.random.default_rng(3), list[object]()
    texts = [Text(tag, rng.integers(0, VOCABULARY, 20).tolist(), each) for tag, each in enumerate(SAMPLINGS)]
    for turn in range(6):
        reply = sender.send(texts, 3, 1 + turn % 2)
        assert not reply.status.any()
        found += [rows_of(reply.trees), reply.trees.scores.round(3).tolist()]
        for text, own in zip(texts, rows_of(reply.trees)):
            text.tokens += [*own[: turn % 3], VOCABULARY - 1 - turn]
        found.append(hits_of(sender.read(texts, [20] * len(texts))[1]))
    return found


@pytest.mark.parametrize("size", [VOCABULARY - 9, VOCABULARY + 13])
def test_it_drafts_as_one_of_the_target_s_own_size(size: int, folder: Path, tmp_path: Path) -> None:
    there = Neural(neural(padded(tmp_path / "padded", folder, size)))
    drafter = RemoteDrafter([there], token_of(SECRET), name="draft_remote", vocab_size=VOCABULARY, deadline=60.0)
    try:
        up(drafter)
        assert drafter.info().vocab_size == min(size, VOCABULARY)
        found = outcome(Sender(drafter, new_origin("a")))
    finally:
        drafter.close()
    own = Sender(neural(folder if size > VOCABULARY else tmp_path / "padded"))
    assert found == outcome(own)

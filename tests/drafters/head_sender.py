"""Messages to heads, with the states of the formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from covey.contracts.ports import Drafter
from covey.sampling.drawing import draw
from covey.sampling.settings import SettingsTable
from tests.drafters.drafting import Sender, Text
from tests.models import tiny_heads
from tests.models.tiny_heads import Formula


class HeadSender(Sender):
    """Sends states along, as the target would."""

    def __init__(self, drafter: Drafter, formula: Formula) -> None:
        super().__init__(drafter)
        self._formula = formula

    def states_of(self, texts: Sequence[Text]) -> dict[str, Any]:
        parts = [
            tiny_heads.words(self._formula.states(text.tokens))[max(0, (text.seen or 0) - 1) : len(text.tokens) - 1]
            for text in texts
        ]
        offsets = np.cumsum([0, *map(len, parts)], dtype=np.int32)
        return {"state_offsets": offsets, "states": np.concatenate(parts)}

    def expected(self, text: Text, depth: int) -> list[int]:
        states = tiny_heads.words(self._formula.states(text.tokens))[:-1]
        table = SettingsTable()
        row = np.asarray([table.add(text.sampling, text.num_prompt)])

        def drawn(logits: torch.Tensor, position: int) -> int:
            wide, ids = torch.full((1, tiny_heads.VOCAB), -torch.inf), self._formula.ids
            wide[0, ids] = logits
            token = draw(wide.numpy(), table, row, np.asarray([position])).tokens[0]
            return int(np.flatnonzero(ids == token)[0])

        return self._formula.chain(text.tokens, tiny_heads.floats(states), depth, drawn)

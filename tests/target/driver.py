"""Texts on a target, pass by pass, as an orchestrator asks for them over the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from covey.contracts.ports import Target
from covey.contracts.types import Open, Sampling, TargetReply, TargetWork, Trees
from covey.wire import codec
from tests.arrays import ints


class Driver:
    """Prompts in chunks, then token by token, with drafts where they are given."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.texts: dict[int, list[int]] = {}
        self.cached: dict[int, int] = {}
        self.status: dict[int, int] = {}
        self._ends: dict[int, int] = {}  # the most tokens of each text
        self._opens: list[Open] = []
        self._frees: list[int] = []
        self._sequence = 0

    def open(self, tag: int, tokens: Sequence[int], sampling: Sampling = Sampling(), room: int = 99) -> None:  # noqa: B008
        self._opens.append(Open(tag, ints(*tokens), len(tokens), sampling))
        self.texts[tag], self.cached[tag], self._ends[tag] = list(tokens), 0, len(tokens) + room

    def free(self, tag: int) -> None:
        del self.texts[tag]
        self._frees.append(tag)

    def step(
        self, *tags: int, chains: Sequence[Sequence[int]] = (), chunk: int | Sequence[int] = 64, **more: Any
    ) -> TargetReply:
        """Make one pass over these texts. `chains` are drafts of the first ones."""
        self._sequence += 1
        most = [chunk] * len(tags) if isinstance(chunk, int) else chunk
        work = TargetWork(
            ints(*tags),
            ints(*(len(self.texts[tag]) for tag in tags)),
            ints(*(min(size, len(self.texts[tag]) - self.cached[tag]) for tag, size in zip(tags, most))),
            more.pop("trees", None) or Trees.chains([*chains, *[[]] * (len(tags) - len(chains))]),
            tuple(self._opens),
            tuple(self._frees),
            sequence=self._sequence,
            room=ints(*(self._ends[tag] - len(self.texts[tag]) for tag in tags)),
            origin=7,
            **more,
        )
        self._opens, self._frees = [], []
        answer = self.target.step(codec.decode_target_work(codec.encode(work)))
        reply = codec.decode_target_reply(codec.encode(answer))
        for row, tag in enumerate(tags):
            self.texts[tag] += reply.tokens[reply.offsets[row] : reply.offsets[row + 1]].tolist()
            self.cached[tag] = int(reply.num_cached_tokens[row])
            self.status[tag] = int(reply.status[row])
        return reply


class Text(Driver):
    """One text alone."""

    def __init__(
        self,
        target: Target,
        prompt: Sequence[int],
        sampling: Sampling = Sampling(),  # noqa: B008
        room: int = 99,
    ) -> None:
        super().__init__(target)
        self.open(1, prompt, sampling, room)

    @property
    def tokens(self) -> list[int]:
        return self.texts[1]

    def go(self, draft: int = 0, chain: Sequence[int] = ()) -> TargetReply:
        """Make a pass with these drafts, after which the target's own head drafts `draft` tokens."""
        reply = self.step(1, chains=[chain], next_depth=ints(draft))
        emitted = reply.tokens.tolist()
        right = next((at for at, pair in enumerate(zip(chain, emitted)) if pair[0] != pair[1]), len(chain))
        assert reply.accepted.tolist() == [right]
        return reply

"""Lets a target write texts at temperature 1 by Covey's engine in this process, many in a pass, without drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from covey.contracts.clock import RealClock
from covey.contracts.errors import SettingError
from covey.contracts.profile import SpeculationSettings, TargetSettings
from covey.contracts.types import Progress, Request, Sampling
from covey.loop.engine import Engine
from covey.planner.build import build
from covey.requests.scheduler import Scheduler
from covey.target.runner import TargetRunner

ROWS, ROWS_OF_GPU = 64, 256  # texts that are written at the same time
PASS_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Text:
    """A text to write. `done` gets its tokens, and may return another text to write next."""

    prompt: Sequence[int]
    tokens: int  # at most
    seed: int
    done: Callable[[list[int]], Text | None]
    partly: bool = False  # whether a part of it is useful if time runs out


class Writer:
    """One target and its engine. They have reference cycles, so only `gc.collect` frees their memory."""

    def __init__(self, folder: Path, *, device: str, longest: int) -> None:
        """No text, including its prompt, may have more than `longest` tokens."""
        self.rows = ROWS_OF_GPU if device == "cuda" else ROWS
        usual = TargetSettings()
        blocks = (self.rows + 1) * -(-(longest + 1) // usual.block_size)
        budget = max(PASS_TOKENS, self.rows)
        target = TargetRunner.load(
            folder, TargetSettings(device=device, kv_blocks=blocks, run_ahead=False), token_budget=budget, name="target"
        )
        self.ends = target.info().end_ids
        self._sink = _Collected()
        self._engine = Engine(
            target,
            Scheduler(max_running=self.rows, max_waiting=self.rows, token_budget=budget, block_size=usual.block_size),
            build(SpeculationSettings(policy="off"), (), max_rows=self.rows),
            self._sink,
            RealClock(),
        )
        self._keys, self._running = 0, dict[int, Text]()

    def write(self, texts: Iterator[Text]) -> Iterator[int]:
        """Write the texts, and yield after each pass how many tokens it brought. A caller that stops iterating may
        `cut` the unfinished texts."""
        running = self._running
        more = True
        while more or running:
            while more and len(running) < self.rows:
                text = next(texts, None)
                more = text is not None
                if text is not None:
                    running[self._submit(text)] = text
            self._engine.round()
            for key, tokens in self._sink.ended():
                following = running.pop(key).done(tokens)
                if following is not None:
                    running[self._submit(following)] = following
            yield self._sink.take()

    def cut(self) -> None:
        """Drop the unfinished texts; keep the parts of those that are useful."""
        for key, text in self._running.items():
            if text.partly and (tokens := self._sink.of(key)):
                text.done(tokens)
        self._running.clear()

    def _submit(self, text: Text) -> int:
        self._keys += 1
        prompt = np.asarray(text.prompt, np.int32)
        sampling = Sampling(temperature=1.0, end_ids=self.ends, seed=text.seed)
        self._engine.submit(Request(self._keys, prompt, text.tokens, sampling, len(prompt)))
        return self._keys


@dataclass
class _Collected:
    """Collects the engine's output."""

    _texts: dict[int, list[int]] = field(default_factory=dict)
    _ended: list[int] = field(default_factory=list)
    _new: int = 0

    def publish(self, batch: Sequence[Progress]) -> None:
        for each in batch:
            if each.error is not None:
                raise SettingError(f"the target cannot write: {each.error}") from each.error
            self._texts.setdefault(each.key, []).extend(each.tokens.tolist())
            self._new += len(each.tokens)
            if each.finish is not None:
                self._ended.append(each.key)

    def of(self, key: int) -> list[int]:
        return self._texts.get(key, [])

    def take(self) -> int:
        new, self._new = self._new, 0
        return new

    def ended(self) -> list[tuple[int, list[int]]]:
        ended, self._ended = self._ended, []
        return [(key, self._texts.pop(key)) for key in ended]

"""Asks competitors at the far end of pipes: the peers, each in an environment of its own, and Covey alone in a
process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from covey.contracts.errors import SettingError
from covey.contracts.types import JsonDict
from loadtest.bench.peers.pipe import Pipe
from loadtest.bench.policies import OFF, fixed
from loadtest.bench.work import Answer, Ask, Run

OPENVINO, VLLM = "openvino", "vllm"
_FOLDER = Path(__file__).parent / "scripts"
SCRIPTS = {OPENVINO: _FOLDER / "openvino_genai_peer.py", VLLM: _FOLDER / "vllm_peer.py"}
DEPTHS = (4, 2, 8, 3, 6, 1, 5, 7)  # that are tried, in this order


def named(who: str, depth: int) -> str:
    """Return the name of a peer at a depth; at 0 it decodes plainly."""
    return f"{who} {fixed(depth) if depth else OFF}"


class OverPipe:
    """Asks whoever is behind a pipe, at one depth. Requests go there so many at a time, as one batch, and are of one
    length; seconds are those that the far end takes for a batch, without the pipe."""

    def __init__(self, name: str, pipe: Callable[[], Pipe], depth: int = 0) -> None:
        self.name = name
        self._pipe, self._depth = pipe, depth
        self.said: JsonDict = {}  # of the last batch

    def run(self, asks: Sequence[Ask], concurrency: int, tenant: str = "") -> Run:  # noqa: ARG002 - no cache there
        answers: list[Answer] = []
        seconds = 0.0
        for start in range(0, len(asks), concurrency):
            batch = asks[start : start + concurrency]
            self.said = self._pipe().call(
                "generate",
                prompts=[list(ask.ids) for ask in batch],
                tokens=batch[0].max_tokens,
                temperature=batch[0].temperature,
                seed=batch[0].seed,
                depth=self._depth,
            )
            seconds += self.said["seconds"]
            answers += [Answer(tuple(tokens), self.said["seconds"]) for tokens in self.said["tokens"]]
        return Run(tuple(answers), seconds)


class Peer:
    """Runs somebody else's engine under its own Python. Owns its processes: one decodes plainly, others draft, each at
    the depths that it says when it has loaded."""

    def __init__(self, name: str, python: str, given: Mapping[str, object]) -> None:
        """`given` goes into every `load`."""
        self.name, self.version = name, ""
        self._words, self._given = [python, str(SCRIPTS[name])], dict(given)
        self._pipes: dict[tuple[int, ...], Pipe] = {}

    def at(self, depth: int) -> OverPipe:
        return OverPipe(named(self.name, depth), lambda: self._opened(depth), depth)

    def keep(self, depths: Collection[int]) -> None:
        """End the processes that serve none of these. They are started again when they are asked."""
        for served in [served for served in self._pipes if not set(served) & set(depths)]:
            self._pipes.pop(served).close()

    def close(self) -> None:
        self.keep(())

    def _opened(self, depth: int) -> Pipe:
        for served, pipe in self._pipes.items():
            if depth in served:
                return pipe
        pipe = Pipe(named(self.name, depth), self._words)
        try:
            said = pipe.call("load", depth=depth, **self._given)
        except BaseException:
            pipe.close()
            raise
        self.version = said["version"]
        self._pipes[tuple(said["depths"])] = pipe
        return pipe


def pythons(given: Sequence[str]) -> dict[str, str]:
    """Return the Python of each NAME=PYTHON, checked."""
    found = {}
    for entry in given:
        name, _, python = entry.partition("=")
        if name not in SCRIPTS or not python:
            raise SettingError(f"--peer: got {entry!r}, allowed: NAME=PYTHON, NAME one of {', '.join(SCRIPTS)}")
        found[name] = str(Path(python).expanduser())
    return found


def ours(name: str, module: str, **given: object) -> tuple[Pipe, JsonDict]:
    """Return a process of Covey's own, loaded, and what it says."""
    pipe = Pipe(name, [sys.executable, "-m", f"loadtest.bench.peers.{module}"])
    try:
        return pipe, pipe.call("load", **given)
    except BaseException:
        pipe.close()
        raise

"""Runs a bench once: its options, its time budget, its progress, and the files written when it ends or is cut short."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from covey.contracts import profile
from covey.contracts.errors import SettingError
from covey.contracts.profile import Profile
from covey.contracts.types import JsonDict
from covey.process import cpu
from covey.server import FREE_PORTS, Options, Server, default_model
from covey_client.progress import Steps, status
from loadtest import questions
from loadtest.bench import facts

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Wanted:
    """Holds the options of the command line."""

    out: Path
    quick: bool = False  # a smoke run
    seed: int = 1
    profile: str = profile.DEFAULT_PROFILE
    model: str = ""  # Hugging Face folder of the target; "": the profile's, else the model repository's
    minutes: float = 22.0  # no repetition starts that would end later
    repetitions: int = 0  # 0: the bench's own number
    data: Path | None = None  # Azure's trace
    pairs: tuple[str, ...] = ()  # emulated ones; none named: all
    callers: tuple[int, ...] = ()  # loads of `speedup`; (): the bench's own
    parts: tuple[str, ...] = ()  # as `parts_of` has them
    peers: tuple[str, ...] = ()  # NAME=PYTHON
    device: str = "auto"  # of `gpu`: auto, cuda or cpu
    shape: str = ""  # of `gpu`'s pair; "": by the device
    agreement: float = 0.7  # ... and how often its drafter is right

    def parts_of(self, allowed: Iterable[str]) -> tuple[str, ...]:
        """Return the wanted parts; all if none is named. Raises SettingError for an unknown one."""
        allowed = tuple(allowed)
        for part in self.parts:
            if part not in allowed:
                raise SettingError(f"--part: got {part!r}, allowed: {', '.join(allowed)}")
        return self.parts or allowed

    def sized(self, usual: V, quick: V) -> V:
        """Return the choice of these for the wanted size of a bench."""
        return quick if self.quick else usual

    def options(self, profile: Path | None = None) -> Options:
        """Return options of a server on free ports, with the wanted profile or that of a file."""
        return Options(**FREE_PORTS, profile=self.profile if profile is None else str(profile), model=self.model)

    def target_folder(self, settings: Profile) -> str:
        """Return the folder of the weights that a server with these settings serves."""
        return self.model or settings.target.folder or str(self.options().repository_folder() / "target" / "1")

    def prompts(self) -> questions.Prompts:
        """Return the prompts for such a server, by domain."""
        return questions.of_folder(self.target_folder(profile.load(self.profile)))


def served(profile: str = "", model: str = "") -> dict[str, str]:
    """Return the profile and the model that `make serve` takes when it is given these."""
    chosen = default_model.chosen(Options(profile=profile, model=model))
    return {"profile": chosen.profile, "model": chosen.model}


@dataclass
class Session:
    """Collects a bench's results; `summarise` makes the JSON's keys from the measurements so far."""

    bench: str
    wanted: Wanted
    console: Console
    summarise: Callable[[], JsonDict] = dict
    draw: Callable[[JsonDict], str] | None = None  # returns a picture of the results, as SVG
    interrupted: bool = False
    notes: JsonDict = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    _longest: float = 0.0  # seconds of any step

    def out_of_time(self) -> bool:
        """Return whether the time would be up after another step as long as the longest so far."""
        return self._longest > self._began + 60 * self.wanted.minutes - time.monotonic()

    def share(self, parts: int) -> float:
        """Return the seconds of one of `parts` equal parts of the time that is left."""
        return max(0.0, self._began + 60 * self.wanted.minutes - time.monotonic()) / parts

    def repetitions(self, usual: int, quick: int = 1) -> int:
        return self.wanted.repetitions or self.wanted.sized(usual, quick)

    @contextlib.contextmanager
    def server(self, options: Options) -> Iterator[Server]:
        """Return a server without the state of earlier ones, unless the options say otherwise."""
        with contextlib.ExitStack() as stack:
            if options.kept is None:
                options = replace(options, kept=Path(stack.enter_context(tempfile.TemporaryDirectory())))
            with self.status("starting the server"):
                server = stack.enter_context(Server(options))
            yield server

    def status(self, doing: str) -> AbstractContextManager[None]:
        """Show the current work."""
        return status(self.console, doing)

    def steps(self, labels: Sequence[str]) -> Iterator[str]:
        """Yield the labels one by one, shown."""
        with Steps(self.console) as progress:
            task = progress.add_task(self.bench, total=len(labels))
            for done, label in enumerate(labels):
                started = time.monotonic()
                progress.update(task, completed=done, description=label)
                yield label
                self._longest = max(self._longest, time.monotonic() - started)

    def each(self, labelled: Sequence[tuple[str, V]]) -> Iterator[V]:
        """Yield the values, each while its label is shown."""
        for _, (_, value) in zip(self.steps([label for label, _ in labelled]), labelled):
            yield value

    def side_by_side(self, jobs: Sequence[tuple[K, Callable[..., V], tuple[Any, ...]]]) -> Iterator[tuple[K, V]]:
        """Yield a key of each job and the result of its call, as they end: on all cores, and fewer jobs when time is
        up."""
        with ProcessPoolExecutor(cpu.cores()) as pool:
            waiting = {pool.submit(call, *given): key for key, call, given in jobs}
            try:
                labels = [f"{len(waiting)} runs in virtual time"] * len(waiting)
                for done, _ in zip(as_completed(waiting), self.steps(labels)):
                    yield waiting[done], done.result()
                    if self.out_of_time():
                        self.interrupted = True
                        break
            finally:
                pool.shutdown(cancel_futures=True)

    def write(self) -> JsonDict:
        """Write everything there is to the JSON file, and return it."""
        result: JsonDict = {
            "bench": self.bench,
            "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "interrupted": self.interrupted,
            "minutes": round((time.monotonic() - self._began) / 60, 2),
            "quick": self.wanted.quick,
            "seed": self.wanted.seed,
            "profile": self.wanted.profile,
            "hardware": facts.hardware(),
            "versions": facts.versions(),
            **self.notes,
            **self.summarise(),
        }
        self.wanted.out.parent.mkdir(parents=True, exist_ok=True)
        self.wanted.out.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
        self.console.print(f"written: {self.wanted.out}")
        if self.draw is not None:
            self.wanted.out.with_suffix(".svg").write_text(self.draw(result))
        return result

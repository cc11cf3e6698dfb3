"""One run of a bench: its options, its time budget, its progress, and what is written when it ends or is cut short."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from covey import profile
from covey.profile import Profile
from covey.server import FREE, Options, Server
from covey.types import JsonDict
from loadtest.bench import facts

QUICK, USUAL, FULL = "quick", "usual", "full"
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Wanted:
    """What the command line asked for."""

    out: Path
    size: str = USUAL  # quick: a smoke run; full: more repetitions
    seed: int = 1
    profile: str = profile.DEFAULT_PROFILE
    model: str = ""  # Hugging Face folder of the target; "": the profile's, else the model repository's
    minutes: float = 22.0  # no repetition begins after so long
    repetitions: int = 0  # 0: the bench's own number for this size
    data: Path | None = None  # a trace, or the folder of outside data
    pairs: tuple[str, ...] = ()  # emulated ones; none named: all
    dataset: str = "ShareGPT"  # whose lengths emulated requests have
    parts: tuple[str, ...] = ()  # of `gpu` and `load`; none named: all
    peers: tuple[str, ...] = ()  # NAME=PYTHON
    device: str = "auto"  # of `gpu`: auto, cuda, cpu or interpreted
    shape: str = ""  # of `gpu`'s pair; "": what suits the device
    agreement: float = 0.7  # ... and how often its drafter is right
    run_ahead: bool = True  # ... and whether its target computes the next plain pass early

    def options(self) -> Options:
        """A server on free ports."""
        return Options(http_port=FREE, grpc_port=FREE, metrics_port=FREE, profile=self.profile, model=self.model)

    def target_folder(self, settings: Profile) -> str:
        """Where the weights are that such a server serves."""
        return self.model or settings.target.folder or str(self.options().repository_folder() / "target" / "1")


@dataclass
class Session:
    """Collects a bench's results; `summarise` makes the JSON's keys of whatever has been measured."""

    bench: str
    wanted: Wanted
    console: Console
    summarise: Callable[[], JsonDict] = dict
    interrupted: bool = False
    notes: JsonDict = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    def out_of_time(self, share: float = 1.0) -> bool:
        """Whether that share of the time is up."""
        return time.monotonic() - self._began > share * 60 * self.wanted.minutes

    def repetitions(self, usual: int, full: int, quick: int = 1) -> int:
        return self.wanted.repetitions or {QUICK: quick, FULL: full}.get(self.wanted.size, usual)

    @contextlib.contextmanager
    def server(self, options: Options) -> Iterator[Server]:
        """Nothing that an earlier server measured or learnt is known to it, unless the options say where that is."""
        with contextlib.ExitStack() as stack:
            if options.kept is None:
                options = replace(options, kept=Path(stack.enter_context(tempfile.TemporaryDirectory())))
            with self.console.status("starting the server"):
                server = stack.enter_context(Server(options))
            yield server

    def steps(self, labels: Sequence[str]) -> Iterator[str]:
        """The labels one by one, with a bar; ends early, between steps, when time is up."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task(self.bench, total=len(labels))
            for label in labels:
                progress.update(task, description=label)
                yield label
                progress.advance(task)

    def side_by_side(self, jobs: Sequence[tuple[K, Callable[..., V], tuple[Any, ...]]]) -> Iterator[tuple[K, V]]:
        """A key of each job and what its call gives, as they end: on all cores, and fewer of them when time is up."""
        with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
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
        """Everything there is, to the JSON file."""
        result: JsonDict = {
            "bench": self.bench,
            "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "interrupted": self.interrupted,
            "minutes": round((time.monotonic() - self._began) / 60, 2),
            "size": self.wanted.size,
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
        return result

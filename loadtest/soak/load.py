"""The load: several kinds of traffic, each a `python -m loadtest` of its own, and clients that do not behave."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from covey_client.client import Client
from covey_client.errors import CoveyClientError, InvalidRequest
from loadtest import records

GRACE = 30.0  # seconds for requests in flight to end
TIMEOUT = 600.0  # seconds for an answer: a machine may be suspended meanwhile
PAUSE = 1.0  # second between two clients that do not behave
QUESTION = "User: Do you like films?\nAssistant:"


@dataclass(frozen=True)
class Kind:
    """One kind of traffic."""

    name: str
    users: int
    flags: tuple[str, ...]


KINDS = (
    Kind("greedy", 16, ("--transport", "grpc", "--tokens", "16:96")),
    Kind("sampled", 8, ("--transport", "http", "--tokens", "16:96", "--temperature", "0.8")),
    Kind("long", 4, ("--transport", "grpc", "--prompts", "synthetic:384,48", "--speculation", "fixed:3")),
)


@dataclass(frozen=True)
class Addresses:
    """Of one server, as host:port."""

    grpc: str
    http: str
    metrics: str

    def flags(self) -> list[str]:
        return ["--url", self.grpc, "--http-url", self.http, "--metrics-url", self.metrics]


class Traffic:
    """All kinds at once, in processes of their own, whose runs are folders in `out`."""

    def __init__(self, addresses: Addresses, out: Path, label: str) -> None:
        self._addresses = addresses
        self._out, self._label = out, label
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, shapes: dict[str, str], seconds: float) -> None:
        self._out.mkdir(parents=True, exist_ok=True)
        for seed, kind in enumerate(KINDS, start=1):
            name = f"{self._label}-{kind.name}"
            words = [sys.executable, "-m", "loadtest", *self._addresses.flags(), *kind.flags]
            words += ["--shape", shapes[kind.name], "--seconds", str(seconds), "--grace", str(GRACE)]
            words += ["--request-timeout", str(TIMEOUT), "--seed", str(seed), "--out", str(self._out), "--name", name]
            with (self._out / f"{name}.log").open("wb") as log:
                self._running[kind.name] = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )

    @property
    def running(self) -> bool:
        return any(process.poll() is None for process in self._running.values())

    def stop(self) -> None:
        """End early what still runs."""
        for process in self._running.values():
            if process.poll() is None:
                process.terminate()
        for process in self._running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            process.kill()

    def runs(self) -> dict[str, records.Run]:
        """What was recorded, by kind; call when nothing runs."""
        found = {}
        for name in self._running:
            folder = self._out / f"{self._label}-{name}"
            if (folder / records.SETTINGS).is_file():
                found[name] = records.load(folder)
        return found

    def errors(self) -> list[str]:
        """What went wrong, by kind, with how often."""
        found = []
        runs = self.runs()
        for name, process in self._running.items():
            if process.returncode not in (0, 1) or name not in runs:
                said = (self._out / f"{self._label}-{name}.log").read_text(errors="replace").strip().splitlines()
                found.append(f"{name}: the load generator failed: {said[-1] if said else process.returncode}")
                continue
            failed = Counter(f"{r.outcome}: {r.error}" for r in runs[name].records if r.failed)
            found += [f"{name}: {count} times {what}" for what, count in failed.most_common(3)]
        return found


def capacity(runs: dict[str, records.Run], skip: float) -> dict[str, float]:
    """Requests a second that ended, by kind, the first `skip` seconds left out."""
    return {
        name: sum(record.finished and record.end >= skip for record in run.records) / max(run.seconds - skip, 1e-9)
        for name, run in runs.items()
    }


class Strays(threading.Thread):
    """One after the other, until stopped: a client that leaves in the middle, one whose request is refused, one that
    asks `covey_unary`."""

    def __init__(self, addresses: Addresses) -> None:
        super().__init__(name="strays", daemon=True)
        self.asked: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self._addresses = addresses
        self._stopped = threading.Event()

    def run(self) -> None:
        with Client(self._addresses.grpc) as client, Client(self._addresses.grpc, model="covey_unary") as unary:
            ways = (("left", self._leave, client), ("refused", self._ask_wrongly, client), ("unary", self._ask, unary))
            for name, ask, whom in itertools.cycle(ways):
                try:
                    ask(whom)
                    self.asked[name] += 1
                except CoveyClientError as error:
                    self.errors[f"{name}: {type(error).__name__}: {error}"] += 1
                if self._stopped.wait(PAUSE):
                    return

    def stop(self) -> list[str]:
        """End, and say what went wrong."""
        self._stopped.set()
        self.join(GRACE)
        return [f"{count} times {what}" for what, count in self.errors.most_common(3)]

    @staticmethod
    def _leave(client: Client) -> None:
        with client.stream(QUESTION, max_tokens=200) as stream:
            next(stream)

    @staticmethod
    def _ask_wrongly(client: Client) -> None:
        with suppress(InvalidRequest):
            client.generate(QUESTION, max_tokens=-1)

    @staticmethod
    def _ask(client: Client) -> None:
        client.generate(QUESTION, max_tokens=24)

"""Injects faults while a server starts and while it drains.

Each cycle starts a launcher, hurts a process meanwhile, asks, ends the launcher, and hurts another process of it; some
launchers are killed outright instead.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from argparse import Namespace
from dataclasses import dataclass

from covey.contracts.errors import SettingError
from covey.contracts.types import JsonDict
from covey.server.options import Options
from covey.server.process import LEAVE_SECONDS
from loadtest.attack import verdict
from loadtest.attack.injection import KILL, LOST_SECONDS, Fault, harm, wanted
from loadtest.attack.launched import FRONT, LAUNCHER, LOOK_SECONDS, SERVER, Launched
from loadtest.attack.streams import DOORS, Outcome, Streams, asks

PROFILE = """
models = ["target", "tokenize", "covey", "covey_unary", "draft_ngram"]
[target]
threads = 1
kv_memory_mb = 256
[speculation]
drafters = ["draft_ngram"]
"""
OUTRIGHT = 0.2  # share of launchers that are killed
DEADLINE = 180.0  # seconds of a request
START, DRAIN = "at the start", "at the end"
BEGIN_SECONDS = 60.0  # until all streams have begun
SLACK_SECONDS = 5.0  # that a launcher may take longer to leave, on a machine that does much else
RUNNING = r"covey_requests_running\S*"
IN_FLIGHT = "stopped with requests in flight"
BREAKING = ("covey", SERVER, FRONT, LAUNCHER)  # whose requests end with them; a target's and a drafter's do not


@dataclass
class Blow:
    """Hurts one process at its moment, or as soon as there is one then."""

    what: str
    way: str
    when: str  # in the server's life
    at: float  # by the clock of `time.monotonic`
    fault: Fault | None = None

    def look(self, server: Launched) -> None:
        if self.fault is None and time.monotonic() >= self.at:
            pid = server.processes().get(self.what)
            if pid is not None and harm(self.what, self.way, pid):
                self.fault = Fault(self.what, self.way, pid, time.monotonic(), when=self.when)

    def back(self, server: Launched) -> bool:
        """Return whether another process serves in the hurt one's place, or nothing was hurt."""
        fault = self.fault
        return fault is None or (server.processes().get(self.what, fault.pid) != fault.pid and server.ready(self.what))

    def breaks(self, answer: Outcome) -> bool:
        """Return whether the blow may have ended that answer with an error."""
        return self.fault is not None and (
            self.what in BREAKING or (self.what, answer.door) == ("covey_unary", "unary")
        )


class Cycles:
    """Owns what was done and found. The first cycle is undisturbed, to learn answers and the time of a start."""

    def __init__(self, given: Namespace) -> None:
        self._given, self._drawn = given, random.Random(given.seed)
        self._profile = given.profile or str(given.out / "starts.toml")
        (given.out / "starts.toml").write_text(PROFILE)
        self._asks = asks(given.streams, given.tokens, given.seed, ())
        self._kinds: list[tuple[str, str]] = []  # of faults
        self._known: list[tuple[int, ...]] = []
        self._start_seconds = self._drain_seconds = 0.0
        self.faults: list[Fault] = []
        self.answers: list[Outcome] = []
        self.refused = 0
        self.problems: list[str] = []

    def run(self) -> JsonDict:
        began = time.monotonic()
        for cycle in range(self._given.starts + 1):
            if time.monotonic() - began > 60 * self._given.minutes:
                break
            found = self._cycle()
            self.problems += [f"cycle {cycle}: {problem}" for problem in found]
            for name in ("launcher.log", "tritonserver.log") if found else ():
                shutil.copy(self._given.out / name, self._given.out / f"{cycle:03}-{name}")
        if not any(map(_right, self.answers)):
            self.problems.append("no answer was right")
        return {
            **verdict.recovery(self.faults),
            **verdict.said(self.answers, self.refused),
            "seconds": time.monotonic() - began,
            "problems": self.problems,
        }

    def _cycle(self) -> list[str]:
        """Run one launcher; returns what is wrong with it."""
        began = time.monotonic()
        blow = self._blow(START, began, self._start_seconds)
        try:
            server = Launched(self._profile, self._given.out, small=False, meanwhile=blow.look)
        except SettingError as error:
            return [f"{self._said(blow)}: {error}"]
        with server:
            while time.monotonic() < blow.at + LOST_SECONDS and not (blow.back(server) and server.ready()):
                time.sleep(LOOK_SECONDS)
            if not blow.back(server):
                return [f"{self._said(blow)}: it is not back"]
            self._note(blow)
            self._start_seconds = self._start_seconds or time.monotonic() - began
            return self._serve(server, self._said(blow))

    def _serve(self, server: Launched, before: str) -> list[str]:
        streams = Streams(server, self._asks, DEADLINE, self._known)
        if not self._known:
            self._kinds = wanted(self._given.only, server)
            streams.undisturbed()
            self._known = streams.known
        first = Streams(server, self._asks[: len(DOORS)], DEADLINE, self._known)
        first.once()
        problems = first.stop() + [_told(answer) for answer in first.answers if not _right(answer)]
        streams.once()
        until = time.monotonic() + BEGIN_SECONDS
        while server.metric(RUNNING) < len(self._asks) and not streams.answers and time.monotonic() < until:
            time.sleep(0.02)
        ended = len(streams.answers)
        began = time.monotonic()
        by = signal.SIGKILL if self._drain_seconds and self._drawn.random() < OUTRIGHT else signal.SIGTERM
        blow = self._blow(DRAIN, began, self._drain_seconds)
        if by == signal.SIGKILL:
            blow = Blow(LAUNCHER, KILL, DRAIN, began, Fault(LAUNCHER, KILL, server.pid, began, when=DRAIN))
        left = server.stop(by, lambda: blow.look(server))
        seconds = time.monotonic() - began
        self._drain_seconds = self._drain_seconds or seconds
        self._note(blow)
        problems += left + streams.stop() + self._untrue(streams.answers[ended:], blow, seconds)
        self.answers += first.answers + streams.answers
        self.refused += first.refused + streams.refused
        return [f"{before}, {self._said(blow)}: {problem}" for problem in problems]

    def _untrue(self, answers: list[Outcome], blow: Blow, seconds: float) -> list[str]:
        """Return what is wrong with an end that took so long."""
        found = []
        if seconds > Options.drain_seconds + LEAVE_SECONDS + SLACK_SECONDS:
            found.append(f"the launcher left after {seconds:.0f} s")
        broken = [answer for answer in answers if not _right(answer)]
        said = IN_FLIGHT in (self._given.out / "launcher.log").read_text(errors="replace")
        if said and not broken:
            found.append(f"it said '{IN_FLIGHT}', and all had ended")
        if broken and not said and blow.what == SERVER:
            found.append(f"it did not say '{IN_FLIGHT}'")
        late = said and seconds >= Options.drain_seconds  # they took longer than a drain waits
        return found + [_told(a) for a in broken if a.outcome != "error" or not (late or blow.breaks(a))]

    def _blow(self, when: str, began: float, seconds: float) -> Blow:
        """Return a blow within so many seconds; none in the first cycle."""
        what, way = self._drawn.choice(self._kinds or [(SERVER, KILL)])
        at = began + self._drawn.uniform(0.0, seconds) if seconds else float("inf")
        return Blow(what, way, when, at)

    def _note(self, blow: Blow) -> None:
        """Note that its fault is over."""
        if blow.fault is not None:
            blow.fault.seconds = time.monotonic() - blow.fault.at
            self.faults.append(blow.fault)

    def _said(self, blow: Blow) -> str:
        return blow.fault.kind if blow.fault is not None else "unhurt"


def _right(answer: Outcome) -> bool:
    return answer.outcome == "right"


def _told(answer: Outcome) -> str:
    return f"{answer.door}: {answer.outcome}: {answer.error}"

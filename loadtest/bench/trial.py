"""Tries whether a server keeps its promises on this machine: what to run first where Covey is new.

    texts     requests have the same text without drafts, with a fixed length, and by the policy
    death     the drafter is killed while requests run: no text changes, and it comes back
    memory    the drafter leaves memory while requests run, and the KV pool grows. Then it comes back, and the pool
              shrinks. No text changes

`--part NAME` tries one alone. A failed part is reported, and the others go on. Findings are written as they come. In
mode `fast` near-ties may give other texts.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from covey.contracts.errors import CoveyError
from covey.contracts.types import JsonDict
from covey.launcher import Server
from covey.supervision import processes
from covey_client.reports import Reports
from loadtest.bench import report, workload
from loadtest.bench.derive import derive, drafting
from loadtest.bench.over_triton import OverTriton
from loadtest.bench.policies import OFF, fixed
from loadtest.bench.session import Session
from loadtest.bench.work import Ask, Run, asked
from loadtest.questions import Prompts

AUTO = "auto"  # the default of requests: the policy chooses the depth
DRAFTED = fixed(3)
TEMPERATURES = (0.0, 1.0)
CALLERS, QUICK_CALLERS = (1, 8), (2,)
REQUESTS, QUICK_REQUESTS = 24, 4  # of each comparison of texts
TOKENS, QUICK_TOKENS = 96, 16  # of an answer
CROWD, QUICK_CROWD = 64, 6  # requests at once while the drafter dies or leaves
CROWD_TOKENS, QUICK_CROWD_TOKENS = 384, 192
LOST_SECONDS = 300.0  # a drafter that is not back by then is lost
GROWTH_SECONDS = 5.0  # the pool takes a drafter's bytes a little after it has left, if it needs them
LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Tried:
    """Holds the server that is tried, its first drafter, and the candidates by their `speculation`."""

    session: Session
    server: Server
    drafter: str
    known: Prompts
    candidates: Mapping[str, OverTriton]

    def asks(self, count: int, tokens: int, temperature: float, number: int) -> list[Ask]:
        """Return requests with prompts of all domains."""
        dealt = workload.dealt(self.known, count, number, seed=self.session.wanted.seed)
        return [asked(text, tokens, temperature, number * 1009 + at, domain) for at, (domain, text) in enumerate(dealt)]

    @property
    def reports(self) -> Reports:
        return Reports(self.server.http_url)

    def state(self) -> str:
        return str(self.reports.memory()["drafters"][self.drafter]["state"])

    def pool_bytes(self) -> int:
        return int(self.reports.memory()["pool_bytes"])

    def process(self) -> int | None:
        """Return the drafter's process."""
        return processes.named(self.server.pid).get(self.drafter)

    def serves(self, instead_of: int) -> bool:
        """Return whether the drafter serves in another process."""
        ready = self.server.control.states().get(self.drafter) == "READY"
        return ready and self.process() not in (None, instead_of) and self.state() == "serving"

    def wait(self, found: Callable[[], bool]) -> float:
        """Return the seconds until it is found. Raises CoveyError."""
        began = time.monotonic()
        while not found():
            if time.monotonic() - began > LOST_SECONDS:
                raise CoveyError(f"{self.drafter} is {self.state()} after {LOST_SECONDS:.0f} s")
            time.sleep(LOOK_SECONDS)
        return time.monotonic() - began

    @contextmanager
    def crowd(self, found: JsonDict, number: int) -> Iterator[None]:
        """Run many requests meanwhile, with drafts. Compare their texts with those of an undisturbed run without."""
        sized = self.session.wanted.sized
        half, tokens = sized(CROWD, QUICK_CROWD) // 2, sized(CROWD_TOKENS, QUICK_CROWD_TOKENS)
        asks = [ask for temperature in TEMPERATURES for ask in self.asks(half, tokens, temperature, number)]
        plain = self.candidates[OFF].run(asks, len(asks), tenant=f"{number} {OFF}")
        with ThreadPoolExecutor(1) as beside:
            disturbed = beside.submit(self.candidates[DRAFTED].run, asks, len(asks), tenant=f"{number}")
            time.sleep(plain.seconds / 5)
            yield
            found["still_ran_afterwards"] = not disturbed.done()
        found |= {"requests": len(asks), "differ": _differ(disturbed.result(), plain)}


def texts(tried: Tried, found: JsonDict) -> None:
    """Compare each candidate's texts with those without drafts, for one caller and for several."""
    sized = tried.session.wanted.sized
    count, tokens = sized(REQUESTS, QUICK_REQUESTS), sized(TOKENS, QUICK_TOKENS)
    cases = [(temperature, callers) for temperature in TEMPERATURES for callers in sized(CALLERS, QUICK_CALLERS)]
    for number, (temperature, callers) in enumerate(cases):
        where, asks = f"temperature {temperature:g}, {callers} callers", tried.asks(count, tokens, temperature, number)
        runs: dict[str, Run] = {}
        for name in tried.session.each([(f"{where}: {name}", name) for name in tried.candidates]):
            runs[name] = tried.candidates[name].run(asks, callers, tenant=f"{name} {where}")
        plain = runs.pop(OFF)
        found[where] = {
            name: {"requests": count, "differ": _differ(run, plain), "accepted": sum(a.accepted for a in run.answers)}
            for name, run in runs.items()
        }


def death(tried: Tried, found: JsonDict) -> None:
    """Kill the drafter in the middle of the crowd's texts."""
    with tried.crowd(found, number=51):
        before = tried.process()
        if before is None:
            raise CoveyError(f"{tried.drafter} has no process of its own to kill")
        os.kill(before, signal.SIGKILL)
        found["seconds_until_it_serves"] = tried.wait(lambda: tried.serves(instead_of=before))


def memory(tried: Tried, found: JsonDict) -> None:
    """Let the drafter leave and come back in the middle of the crowd's texts."""
    before, secret = tried.pool_bytes(), tried.server.control.secret
    with tried.crowd(found, number=52):
        for action, state in (("unload", "unloaded"), ("pin", "serving")):
            tried.reports.wish(action, tried.drafter, secret)
            seconds = tried.wait(lambda: tried.state() == state)  # noqa: B023 - it is called in this turn alone
            until = time.monotonic() + GROWTH_SECONDS
            while (action == "unload") == (tried.pool_bytes() <= before) and time.monotonic() < until:
                time.sleep(LOOK_SECONDS)
            found[action] = {"seconds": seconds, "pool_grown_bytes": tried.pool_bytes() - before, **_device()}


Part = Callable[[Tried, JsonDict], None]  # writes each finding into the dictionary at once
PARTS: Mapping[str, Part] = {"texts": texts, "death": death, "memory": memory}


def run(session: Session) -> None:
    """Try the parts; results go into the session as they come."""
    wanted, found, failures = session.wanted, JsonDict(), JsonDict()
    chosen, settings = wanted.parts_of(PARTS), drafting(wanted.profile)
    session.summarise = lambda: {"parts": found, "failures": failures}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = derive(settings, Path(folder) / "trial.toml", memory={"policy": "thresholds"})
        began = time.monotonic()
        server = stack.enter_context(session.server(wanted.options(path)))
        session.notes["ready_seconds"] = time.monotonic() - began
        session.notes["server"] = asdict(Reports(server.http_url).facts())
        candidates = {}
        for name in (OFF, DRAFTED, AUTO):
            candidates[name] = OverTriton(server, name, stream=True, settings={"speculation": name})
            stack.callback(candidates[name].close)
        tried = Tried(session, server, settings.speculation.drafters[0], wanted.prompts(), candidates)
        for name, part in PARTS.items():
            if name not in chosen:
                continue
            try:
                with session.status(f"trying: {name}"):
                    tried.reports.wish("pin", tried.drafter, server.control.secret)  # only a part moves it
                    tried.wait(lambda: tried.state() == "serving")
                    part(tried, found.setdefault(name, {}))
            except Exception as error:  # the other parts go on
                failures[name] = f"{type(error).__name__}: {error}"
            session.write()


def _differ(run: Run, plain: Run) -> int:
    """Return how many texts differ."""
    return sum(mine.tokens != other.tokens for mine, other in zip(run.answers, plain.answers))


def _device() -> JsonDict:
    """Return how much memory a GPU has free, if there is one."""
    import torch  # slow to import

    return {"device_free_bytes": torch.cuda.mem_get_info()[0]} if torch.cuda.is_available() else {}


def show(result: JsonDict, console: Console) -> None:
    """Print the findings, part by part."""
    if facts := result.get("server"):
        serves = f"{facts['model']} on {facts['device']}, {facts['dtype']}, {facts['numerics']}"
        console.print(f"{serves}: ready after {result['ready_seconds']:.0f} s", markup=False)
    by_case = result["parts"].get("texts", {})
    rows = [
        [where, name, *(str(each[key]) for key in ("requests", "differ", "accepted"))]
        for where, by in by_case.items()
        for name, each in by.items()
    ]
    if rows:
        console.print(report.table("Texts", ["", "drafts", "requests", "other texts", "accepted tokens"], rows))
    for name in ("death", "memory"):
        if found := result["parts"].get(name):
            console.print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in found.items()), markup=False)
    for name, problem in result["failures"].items():
        console.print(f"{name}: failed: {problem}", style="red", markup=False)

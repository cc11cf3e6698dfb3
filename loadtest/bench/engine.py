"""Covey's proposer inside vLLM beside vLLM's own: plain decoding, its n-gram and draft-model methods, our fixed depths.

`--peer vllm=PYTHON` names the Python of an environment that has vLLM's build for CPUs; `--pair FOLDER` is an aligned
pair (`covey.training aligned`), else the profile's target and its first drafter are served. Everybody answers the same
requests in a closed loop, in turns, in an order drawn anew each time. Says nothing of a GPU.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from rich.console import Console

import covey
import covey_client
from covey.errors import SettingError
from covey.profile import AUTO
from covey.types import JsonDict
from loadtest.bench import report, workload
from loadtest.bench.peers.asked import SCRIPTS, VLLM, pythons
from loadtest.bench.peers.line_up import Pair
from loadtest.bench.peers.measured import compared
from loadtest.bench.peers.pipe import Pipe
from loadtest.bench.policies import COVEY, OFF, fixed
from loadtest.bench.session import QUICK, Session
from loadtest.bench.statistics import Spread
from loadtest.bench.work import Answer, Ask, Run

SCRIPT = SCRIPTS[VLLM].with_name("vllm_engine_peer.py")
PATHS = [str(Path(package.__file__).parents[1]) for package in (covey, covey_client)]
CALLERS, QUICK_CALLERS = (1, 4, 16), (1, 4)
REQUESTS = 2  # of a run, by callers; of one caller three times as many
SHORTEST, LONGEST, QUICK_LONGEST = 16, 96, 24  # tokens of an answer
DEPTH, DEPTHS = 4, (2, 4)  # of vLLM's own methods, and ours by hand
TURNS, FULL_TURNS = 6, 30
PLAIN, LOOKUP, MODEL = "vllm plain", "vllm ngram", "vllm draft model"
OURS = "in vllm"
ADAPTER = "lookups alone"  # of our proposer: what the call takes where drafting takes next to nothing


@dataclass
class Measured:
    """By callers, then by name, the runs in the order of turns; and milliseconds of our proposer's calls."""

    runs: dict[int, dict[str, list[Run]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    call_ms: dict[int, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def summary(self) -> JsonDict:
        rates = {
            callers: {name: [run.rate for run in runs] for name, runs in by_name.items()}
            for callers, by_name in sorted(self.runs.items())
        }
        ours = f"{OURS} {COVEY}"

        def over(*others: str) -> JsonDict:
            return {
                str(callers): compared(
                    {ours: by_name.get(ours, [])}, {name: by_name[name] for name in others or by_name if name != ours}
                )
                for callers, by_name in rates.items()
            }

        return {
            "tokens_per_second": {
                str(callers): {name: report.as_json(Spread.of(each)) for name, each in by_name.items()}
                for callers, by_name in rates.items()
            },
            "covey_over_plain": over(PLAIN),
            "covey_over_best_static": over(),
            "empty_lists_over_plain": {
                str(callers): compared({OURS: by_name.get(f"{OURS} {OFF}", [])}, {PLAIN: by_name.get(PLAIN, [])})
                for callers, by_name in rates.items()
            },
            "call_ms": {
                str(callers): {name: median(each) for name, each in by_name.items()}
                for callers, by_name in sorted(self.call_ms.items())
            },
        }


class InVllm:
    """Competitor: an engine behind a pipe, and where it has our proposer, one of its policies."""

    def __init__(self, name: str, pipe: Pipe, policy: str = "") -> None:
        self.name, self._pipe, self._policy = name, pipe, policy
        self.said: JsonDict = {}  # of the last run

    def run(self, asks: Sequence[Ask], concurrency: int, tenant: str = "") -> Run:  # noqa: ARG002 - no cache there
        self.said = self._pipe.call(
            "serve",
            prompts=[list(ask.ids) for ask in asks],
            lengths=[ask.max_tokens for ask in asks],
            callers=concurrency,
            temperature=asks[0].temperature,
            seed=asks[0].seed,
            policy=self._policy,
        )
        seconds = self.said["seconds"]
        return Run(tuple(Answer(tuple(tokens), seconds) for tokens in self.said["tokens"]), seconds)


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    wanted = session.wanted
    python = pythons(wanted.peers).get(VLLM)
    if python is None:
        raise SettingError("--peer vllm=PYTHON must name the Python of an environment that has vLLM's build for CPUs")
    pair = Pair.of(session, wanted.pairs[0] if wanted.pairs else "")
    measured = Measured()
    session.summarise = measured.summary
    quick = wanted.size == QUICK
    callers = QUICK_CALLERS if quick else CALLERS
    with _line_up(session, python, pair, max(callers)) as cast:
        for turn in range(session.repetitions(TURNS, FULL_TURNS) + 1):  # the first warms up
            if turn > 1 and session.out_of_time():
                break
            steps = [(each, one) for each in callers for one in workload.shuffled(cast, wanted.seed, turn, each)]
            for (each, one), _ in zip(
                steps, session.steps([f"turn {turn}: {one.name} at {each}" for each, one in steps])
            ):
                done = one.run(_asks(pair, each, quick, wanted.seed * 1000 + turn), each)
                if turn:
                    measured.runs[each][one.name].append(done)
                    if one.said["call_ms"]:
                        measured.call_ms[each][one.name].append(median(one.said["call_ms"]))
            session.notes["turns"] = turn


def show(result: JsonDict, console: Console, _picture: Path) -> None:
    rates = result["tokens_per_second"]
    names = list(dict.fromkeys(name for by_name in rates.values() for name in by_name))
    rows = [[name, *(report.number((by.get(name) or {}).get("median"), 0) for by in rates.values())] for name in names]
    console.print(report.table("Tokens per second, by callers", ["", *rates], rows))
    rows = [
        [key.replace("_", " "), *(report.number((each or {}).get("median")) for each in result[key].values())]
        for key in ("covey_over_plain", "covey_over_best_static", "empty_lists_over_plain")
    ]
    console.print(report.table("Ratios of turns, by callers", ["", *rates], rows))
    calls: Mapping[str, Mapping[str, float]] = result["call_ms"]
    names = list(dict.fromkeys(name for by_name in calls.values() for name in by_name))
    rows = [[name, *(report.number(by.get(name)) for by in calls.values())] for name in names]
    console.print(report.table("A call of our proposer, ms", ["", *calls], rows))


@contextmanager
def _line_up(session: Session, python: str, pair: Pair, most: int) -> Iterator[list[InVllm]]:
    """Everybody, up and loaded; each of vLLM's own methods has a process."""
    dtype = pair.settings.target.dtype
    given = {
        "target": pair.target,
        "dtype": "bfloat16" if dtype == AUTO else dtype,
        "threads": pair.settings.target.threads or os.cpu_count() or 1,
        "enable_prefix_caching": False,
        "max_model_len": 512,
        "max_num_seqs": most,
    }
    mine = {"method": "custom_class", "model": "covey_vllm.CoveyProposer", "num_speculative_tokens": max(DEPTHS) + 2}
    ways: dict[str, JsonDict | None] = {
        PLAIN: None,
        LOOKUP: {"method": "ngram", "num_speculative_tokens": DEPTH, "prompt_lookup_max": 4, "prompt_lookup_min": 1},
        MODEL: {"method": "draft_model", "model": pair.drafter_folder, "num_speculative_tokens": DEPTH},
        OURS: mine,
    }
    drafter = {pair.drafter: pair.drafter_folder}
    both = {**drafter, "suffix": "suffix"}
    policies: JsonDict = {
        policy: {"drafters": drafter, "speculation": {"policy": policy}} for policy in (OFF, *map(fixed, DEPTHS))
    }
    policies[COVEY] = {"drafters": both, "speculation": {"policy": COVEY}}
    policies[ADAPTER] = {"drafters": {"suffix": "suffix", "ngram": "ngram"}, "speculation": {"policy": COVEY}}
    with ExitStack() as stack:
        cast = []
        for name, speculative in ways.items():
            with session.console.status(f"loading: {name}"):
                pipe = Pipe(name, [python, str(SCRIPT)])
                stack.callback(pipe.close)
                own = {"paths": PATHS, "policies": policies} if speculative is mine else {}
                session.notes["vllm"] = pipe.call("load", **given, **own, speculative=speculative)["version"]
            entrants = [f"{OURS} {each}" for each in policies] if own else [name]
            cast += [InVllm(each, pipe, each.removeprefix(f"{OURS} ") if own else "") for each in entrants]
        yield cast


def _asks(pair: Pair, callers: int, quick: bool, seed: int) -> list[Ask]:
    """Prompts of one length and answers of several, so that a batch is seldom all of one age."""
    count = callers * REQUESTS * (3 if callers == 1 else 1)
    rng, longest = random.Random(seed), QUICK_LONGEST if quick else LONGEST
    return [replace(ask, max_tokens=rng.randint(SHORTEST, longest)) for ask in pair.asks(count, longest, 0.0, seed)]

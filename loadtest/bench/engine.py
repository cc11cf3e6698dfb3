"""Covey's proposer inside vLLM beside vLLM's own: plain decoding, its n-gram, suffix and draft-model methods, our fixed
depths.

`--peer vllm=PYTHON` names the Python of an environment that has vLLM's build for CPUs, and Arctic Inference for its
suffix method, which is left out without; `--pair FOLDER` is an aligned pair (`covey.training aligned`), else the
profile's target and its first drafter are served. Everybody answers the same requests in a closed loop, in turns, in an
order drawn anew each time: of 1, 4, 16 and 32 callers, and of callers that come and leave (`waves`), each greedily and
at temperature 1 (`waves t1`). `--part` names some of these loads. Says nothing of a GPU.
"""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from rich.console import Console

import covey
import covey_client
from covey.contracts.errors import SettingError
from covey.contracts.profile import AUTO
from covey.contracts.types import JsonDict
from loadtest.bench import report, workload
from loadtest.bench.peers.asked import SCRIPTS, VLLM, pythons
from loadtest.bench.peers.line_up import Pair
from loadtest.bench.peers.measured import compared
from loadtest.bench.peers.pipe import Pipe, PipeError
from loadtest.bench.policies import COVEY, OFF, fixed
from loadtest.bench.session import QUICK, Session
from loadtest.bench.work import Answer, Ask, Run

SCRIPT = SCRIPTS[VLLM]
PATHS = [str(Path(package.__file__).parents[1]) for package in (covey, covey_client)]
WAVES = "waves"
Phases = tuple[tuple[int, int], ...]  # callers, and how many requests they make before others come or leave
SHAPES: Mapping[str, Phases] = {
    "1": ((1, 4),),
    "4": ((4, 10),),
    "16": ((16, 32),),
    "32": ((32, 64),),
    WAVES: ((1, 2), (4, 6), (16, 20), (32, 40), (16, 20), (4, 6), (1, 2)),  # each takes about as long as another
}
QUICK_SHAPES: Mapping[str, Phases] = {"1": ((1, 2),), "32": ((32, 32),), WAVES: ((1, 1), (4, 4), (1, 1))}
TEMPERATURES = {"": 0.0, " t1": 1.0}  # by what ends a load's name
WARM_UP = 6  # turns of those that learn before they are compared; of others one
WARM_SHARE = 0.3  # of the minutes that loading leaves, which warming up may take
OPENING = 4  # tokens drawn for each request at its prompt's beginning: no two are the same
SHORTEST, LONGEST, QUICK_LONGEST = 16, 64, 24  # tokens of an answer
DEPTH, DEEPEST, QUICK_DEPTHS = 4, 6, (2, 6)  # of vLLM's own methods, and ours by hand
TURNS, FULL_TURNS = 6, 30
PLAIN, LOOKUP, SUFFIX, MODEL = "vllm plain", "vllm ngram", "vllm suffix", "vllm draft model"
OURS = "in vllm"
ADAPTER = "lookups alone"  # of our proposer: what drafting by earlier text brings


@dataclass
class EngineRuns:
    """Holds runs by load and name, in the order of turns; and milliseconds of our proposer's calls, without drafting
    and in it."""

    runs: dict[str, dict[str, list[Run]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    call_ms: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    draft_ms: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def summary(self) -> JsonDict:
        rates = {
            load: {name: [run.rate for run in runs] for name, runs in by.items()} for load, by in self.runs.items()
        }
        ours = f"{OURS} {COVEY}"
        by_policy = (ours, f"{OURS} {ADAPTER}")

        def over(*others: str) -> JsonDict:
            return {
                load: compared(
                    {ours: by_name.get(ours, [])},
                    {name: by_name[name] for name in others or by_name if name not in by_policy},
                )
                for load, by_name in rates.items()
            }

        def medians(spent: Mapping[str, Mapping[str, list[float]]]) -> JsonDict:
            return {load: {name: median(each) for name, each in by_name.items()} for load, by_name in spent.items()}

        return {
            "tokens_per_second": {load: report.spreads(by_name) for load, by_name in rates.items()},
            "covey_over_plain": over(PLAIN),
            "covey_over_best_static": over(),
            "empty_lists_over_plain": {
                load: compared({OURS: by_name.get(f"{OURS} {OFF}", [])}, {PLAIN: by_name.get(PLAIN, [])})
                for load, by_name in rates.items()
            },
            "call_ms": medians(self.call_ms),
            "draft_ms": medians(self.draft_ms),
        }


class InVllm:
    """Asks an engine behind a pipe, and where it has our proposer, one of its policies."""

    def __init__(self, name: str, pipe: Pipe, policy: str = "") -> None:
        self.name, self._pipe, self._policy = name, pipe, policy
        self.said: JsonDict = {}  # of the last run

    @property
    def learns(self) -> bool:
        return self._policy in (COVEY, ADAPTER)

    def run(self, asks: Sequence[Ask], phases: Phases) -> Run:
        self.said = self._pipe.call(
            "serve",
            prompts=[list(ask.ids) for ask in asks],
            lengths=[ask.max_tokens for ask in asks],
            callers=phases,
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
    measured = EngineRuns()
    session.summarise = measured.summary
    quick = wanted.size == QUICK
    shapes = QUICK_SHAPES if quick else SHAPES
    known = {f"{shape}{suffix}": shapes[shape] for suffix in TEMPERATURES for shape in shapes}
    parts = wanted.parts_of(known)
    loads = {load: phases for load, phases in known.items() if load in parts}
    most = max(callers for phases in loads.values() for callers, _ in phases)
    warm_up = 1 if quick else WARM_UP
    with _line_up(session, python, pair, most) as cast:
        left = session.seconds_left
        for turn in range(1 - warm_up, session.repetitions(TURNS, FULL_TURNS) + 1):
            if turn > 1 and session.out_of_time():
                break
            if turn < 0 and session.seconds_left < (1 - WARM_SHARE) * left:
                continue
            when = f"turn {turn}" if turn > 0 else "warming up"
            steps = [
                (f"{when}: {one.name} at {load}", (load, one))
                for at, load in enumerate(loads)
                for one in workload.shuffled(cast, wanted.seed, turn, at)
                if turn >= 0 or one.learns
            ]
            for load, one in session.each(steps):
                done = one.run(_asks(pair, load, loads[load], quick, wanted.seed * 1000 + turn), loads[load])
                if turn > 0:
                    measured.runs[load][one.name].append(done)
                    for spent, told in ((measured.call_ms, "call_ms"), (measured.draft_ms, "draft_ms")):
                        if one.said[told]:
                            spent[load][one.name].append(median(one.said[told]))
            session.notes["turns"] = turn


def show(result: JsonDict, console: Console, _picture: Path) -> None:
    """Show the tables; there is no curve."""
    rates = result["tokens_per_second"]
    console.print(report.grid("Tokens per second, by load", rates, 0))
    rows = [
        [key.replace("_", " "), *(report.number(each) for each in result[key].values())]
        for key in ("covey_over_plain", "covey_over_best_static", "empty_lists_over_plain")
    ]
    console.print(report.table("Ratios of turns, by load", ["", *rates], rows))
    for key, said in (("call_ms", "without drafting"), ("draft_ms", "in drafting")):
        console.print(report.grid(f"A call of our proposer, ms {said}", result[key]))


@contextmanager
def _line_up(session: Session, python: str, pair: Pair, most: int) -> Iterator[list[InVllm]]:
    """Yield everybody, up and loaded; each of vLLM's own methods has a process."""
    dtype = pair.settings.target.dtype
    given = {
        "target": pair.target,
        "dtype": "bfloat16" if dtype == AUTO else dtype,
        "threads": pair.settings.target.threads or os.cpu_count() or 1,
        "enable_prefix_caching": False,
        "max_model_len": 512,
        "max_num_seqs": most,
    }
    mine = {"method": "custom_class", "model": "covey_vllm.CoveyProposer", "num_speculative_tokens": DEEPEST}
    ways: dict[str, JsonDict | None] = {
        PLAIN: None,
        LOOKUP: {"method": "ngram", "num_speculative_tokens": DEPTH, "prompt_lookup_max": 4, "prompt_lookup_min": 1},
        SUFFIX: {"method": "suffix", "num_speculative_tokens": DEPTH},
        MODEL: {"method": "draft_model", "model": pair.drafter_folder, "num_speculative_tokens": DEPTH},
        OURS: mine,
    }
    depths = QUICK_DEPTHS if session.wanted.size == QUICK else range(1, DEEPEST + 1)
    with ExitStack() as stack:
        cast = []
        for name, speculative in ways.items():
            with session.status(f"loading: {name}"):
                pipe = Pipe(name, [python, str(SCRIPT)])
                stack.callback(pipe.close)
                own: JsonDict = {"paths": PATHS, "policies": _policies(pair, depths)} if speculative is mine else {}
                try:
                    loaded = pipe.call("open", **given, **own, speculative=speculative)
                except PipeError as error:
                    if name != SUFFIX:  # which needs a package that vLLM does not bring
                        raise
                    session.notes["left_out"] = {name: str(error)}
                    continue
                session.notes["vllm"] = loaded["version"]
            entrants = [f"{OURS} {each}" for each in own["policies"]] if own else [name]
            cast += [InVllm(each, pipe, each.removeprefix(f"{OURS} ") if own else "") for each in entrants]
        yield cast


def _policies(pair: Pair, depths: Iterable[int]) -> JsonDict:
    """Return tables for our proposer by the policy's name. Fixed depths have the drafter that the pair is of."""
    drafter = {pair.drafter: pair.drafter_folder}
    made: JsonDict = {
        policy: {"drafters": drafter, "speculation": {"policy": policy}} for policy in (OFF, *map(fixed, depths))
    }
    lookups = {"suffix": "suffix", "ngram": "ngram"}
    made[COVEY] = {"drafters": {**drafter, "suffix": "suffix"}, "speculation": {"policy": COVEY}}
    made[ADAPTER] = {"drafters": lookups, "speculation": {"policy": COVEY}}
    return made


def _asks(pair: Pair, load: str, phases: Phases, quick: bool, seed: int) -> list[Ask]:
    """Return prompts of one length whose answers are of several, so that a batch is seldom all of one age. Whoever
    looks up earlier texts finds none that is the same."""
    rng, longest = random.Random(f"{load} {seed}"), QUICK_LONGEST if quick else LONGEST
    temperature = next(value for suffix, value in reversed(TEMPERATURES.items()) if load.endswith(suffix))
    asks = pair.asks(sum(count for _, count in phases), longest, temperature, seed)
    words = sorted({token for ask in asks for token in ask.ids})
    return [
        replace(
            ask, ids=(*rng.choices(words, k=OPENING), *ask.ids[OPENING:]), max_tokens=rng.randint(SHORTEST, longest)
        )
        for ask in asks
    ]

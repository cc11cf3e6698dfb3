"""Compares Covey on Triton with other engines: OpenVINO GenAI, vLLM's build for CPUs, llama.cpp and transformers, which
also runs on a GPU. All answer the same ids, in turns, from the same folder. llama.cpp reads the 4-bit file that the
folder was made from.

`--peer NAME=PYTHON` names a peer and the Python of an environment that has it. `--pair FOLDER` is an aligned pair
(`covey_training aligned`), else the profile is served. A peer drafts with the profile's first drafter if that is a
language model, else it looks up earlier text if it can. A peer has a process for each depth, and all of them live the
whole time; waiting ones sleep.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median

from rich.console import Console

from covey.contracts.errors import CoveyError, SettingError
from covey.contracts.profile import Profile
from covey.contracts.types import JsonDict
from covey.models import refusals
from covey.process import cpu
from covey.target.runner import typed
from covey.text.tokenization import load_tokenizer
from loadtest import questions
from loadtest.bench import report, workload
from loadtest.bench.derive import derive, drafting
from loadtest.bench.over_triton import OverTriton
from loadtest.bench.peers.pipe import Pipe
from loadtest.bench.policies import ADAPTIVE, OFF, fixed
from loadtest.bench.session import Session, Wanted
from loadtest.bench.statistics import best_over, interval
from loadtest.bench.work import Answer, Ask, Competitor, Run

_FOLDER = Path(__file__).parent / "scripts"
SCRIPTS = {
    "openvino": _FOLDER / "openvino_genai_peer.py",
    "vllm": _FOLDER / "vllm_peer.py",
    "llamacpp": _FOLDER / "llamacpp_peer.py",
    "transformers": _FOLDER / "transformers_peer.py",
}
DEPTHS, QUICK_DEPTHS = (2, 5), (3,)  # of the peers' drafts
CALLERS, QUICK_CALLERS = (1, 4, 8, 16), (1, 4)
REQUESTS = {1: 2, 4: 4, 8: 8, 16: 16}  # of one run
TOKENS, QUICK_TOKENS = 48, 12
REPETITIONS = 12
TEMPERATURES = {"greedy": 0.0, "t1": 1.0}
PAIR_PROFILE = "aligned.toml"  # in the folder of an aligned pair
PROMPT_TOKENS = 48  # the last ones of each prompt: a peer's batch has one length
STREAMED = f"{OFF}, streamed"
OURS = (OFF, STREAMED, ADAPTIVE)  # all but one answer as a whole, as the peers do

Rates = Mapping[str, Sequence[float]]


class Peer:
    """Another project's engine in a separate process, which decodes plainly or drafts a fixed number of tokens.
    Requests of one length go there in batches. Seconds are the engine's time for a batch, without the pipe."""

    def __init__(self, peer: str, python: str, depth: int) -> None:
        self.name = f"{peer} {fixed(depth) if depth else OFF}"
        self._pipe, self._depth = Pipe(self.name, [python, str(SCRIPTS[peer])]), depth
        self.close = self._pipe.close

    def load(self, given: Mapping[str, object]) -> str:
        """Load the models; returns the engine's version."""
        return str(self._pipe.call("load", depth=self._depth, **given)["version"])

    def run(self, asks: Sequence[Ask], concurrency: int, tenant: str = "") -> Run:  # noqa: ARG002 - no cache there
        answers: list[Answer] = []
        seconds = 0.0
        for start in range(0, len(asks), concurrency):
            batch = asks[start : start + concurrency]
            said = self._pipe.call(
                "generate",
                prompts=[list(ask.ids) for ask in batch],
                tokens=batch[0].max_tokens,
                temperature=batch[0].temperature,
                seed=batch[0].seed,
                depth=self._depth,
            )
            seconds += said["seconds"]
            answers += [Answer(tuple(tokens), said["seconds"]) for tokens in said["tokens"]]
        return Run(tuple(answers), seconds)


@dataclass
class PeerRuns:
    """Holds runs by temperature, callers and name, in the order of turns."""

    runs: dict[tuple[str, int], dict[str, list[Run]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def summary(self) -> JsonDict:
        """Return the JSON's keys."""
        found: JsonDict = {label: {"tokens_per_second": {}, "over": {}} for label in TEMPERATURES}
        for (label, callers), by_name in sorted(self.runs.items()):
            rates = {name: [run.rate for run in runs] for name, runs in by_name.items()}
            found[label]["tokens_per_second"][str(callers)] = report.spreads(rates)
            found[label]["over"][str(callers)] = ratios(rates)
        return found


def ratios(rates: Rates) -> JsonDict:
    """Return each of our runs over each peer's plain decoding, and over its best depth. Each ratio is of one turn,
    whose runs are minutes apart at most: a host that changes its speed changes both."""
    found: JsonDict = {}
    for peer in SCRIPTS:
        plain = {name: rates[name] for name in rates if name == f"{peer} {OFF}"}
        drafts = {name: rates[name] for name in rates if name.startswith(f"{peer} ") and name not in plain}
        for ours in OURS:
            for what, theirs in (("plain decoding", plain), ("drafts", drafts)):
                best = best_over({ours: rates[ours]}, theirs, single=True) if theirs and ours in rates else None
                if best is not None:
                    span = {"interval": interval(best.ratios, of=median), "turns": len(best.ratios)}
                    found[f"{ours} over {peer}'s {what}"] = {"median": best.ratio, **span, "over": best.opponents}
    return found


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    wanted, measured = session.wanted, PeerRuns()
    session.summarise = measured.summary
    failures: dict[str, str] = {}
    session.notes["failures"] = failures
    peers = pythons(wanted.peers)  # report an unknown name before anything starts
    quick = wanted.quick
    tokens = QUICK_TOKENS if quick else TOKENS
    with ExitStack() as stack:
        target, entrants = _line_up(session, stack, peers, failures)
        for turn in range(session.repetitions(REPETITIONS) + 1):  # the first warms up
            seed = wanted.seed * 1000 + turn
            steps = [
                (f"turn {turn}: {one.name} at {callers}, {label}", (label, callers, one))
                for label in TEMPERATURES
                for callers in (QUICK_CALLERS if quick else CALLERS)
                for one in workload.shuffled(entrants, seed, callers, int(TEMPERATURES[label]))
            ]
            for label, callers, one in session.each(steps):
                if turn > 1 and session.out_of_time():
                    return
                if one.name in failures:
                    continue
                asks = _asks(target, REQUESTS[callers], tokens, TEMPERATURES[label], seed)
                try:
                    done = one.run(asks, callers, tenant=f"{turn} {one.name} {callers} {label}")
                except CoveyError as error:  # a competitor that fails takes part no longer
                    failures[one.name] = str(error)[:500]
                    session.console.print(f"{one.name}: {error}", style="red", markup=False)
                    continue
                if turn:
                    measured.runs[label, callers][one.name].append(done)
            session.notes["turns"] = turn


def _line_up(
    session: Session, stack: ExitStack, peers: Mapping[str, str], failures: dict[str, str]
) -> tuple[str, list[Competitor]]:
    """Return the target's folder, and all competitors, started and loaded."""
    wanted = session.wanted
    settings, target, drafter = _pair(wanted)
    made = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    asked = settings.target
    given = {
        "target": target,
        "drafter": drafter,
        # Covey alone makes bytes of a checkpoint's weights.
        "dtype": typed(target, replace(asked, dtype="auto") if asked.dtype == "int8" else asked).dtype,
        "threads": cpu.cores(),
        "kept": str(made),  # a peer may keep converted models here
    }
    session.notes |= {"pair": {"target": target, "drafter": drafter}, "dtype": typed(target, asked).dtype, "peers": {}}
    entrants: list[Competitor] = []
    for peer, python in peers.items():
        for depth in (0, *(QUICK_DEPTHS if wanted.quick else DEPTHS)):
            one = Peer(peer, python, depth)
            stack.callback(one.close)
            try:
                with session.status(f"loading: {one.name}"):
                    session.notes["peers"][peer] = one.load(given)
                entrants.append(one)
            except CoveyError as error:
                failures[one.name] = str(error)[:500]
    path = derive(settings, made / "peers.toml", speculation={"policy": ADAPTIVE})
    server = stack.enter_context(session.server(wanted.options(path)))
    for name in OURS:
        asked: dict[str, object] = {"end_id": workload.unused_token(target)}
        asked |= {} if name == ADAPTIVE else {"speculation": OFF}
        ours = OverTriton(server, name, stream=name == STREAMED, settings=asked)
        stack.callback(ours.close)
        entrants.append(ours)
    return target, entrants


def _pair(wanted: Wanted) -> tuple[Profile, str, str]:
    """Return the profile to serve, the folder of its target, and that of its first drafter if that is a language
    model, else ""."""
    settings = drafting(str(Path(wanted.pairs[0]) / PAIR_PROFILE) if wanted.pairs else wanted.profile)
    first = settings.speculation.drafters[0]
    folder = settings.drafter.folder_of(first) or str(wanted.options().repository_folder() / first / "1")
    is_model = (Path(folder) / "config.json").is_file() and not refusals.is_head(refusals.described(Path(folder)))
    return settings, settings.target.folder or wanted.target_folder(settings), folder if is_model else ""


def _asks(target: str, count: int, tokens: int, temperature: float, seed: int) -> list[Ask]:
    """Return requests with these prompts, in an order of the seed's."""
    long = workload.shuffled(_prompts(target), seed)
    return [Ask("", tokens, ids=long[at % len(long)], temperature=temperature, seed=seed + at) for at in range(count)]


@cache
def _prompts(target: str) -> tuple[tuple[int, ...], ...]:
    """Return the ends of the project's prompts, as ids in the target's chat form, all of one length."""
    texts = [text for texts in questions.of_folder(target).values() for text in texts]
    tokenizer = load_tokenizer(target)
    if tokenizer is None:
        raise SettingError(f"{target} has no tokenizer")
    ids = [tokenizer.encode(text).ids if isinstance(text, str) else text for text in texts]
    return tuple(tuple(each[-PROMPT_TOKENS:]) for each in ids if len(each) >= PROMPT_TOKENS)


def pythons(given: Sequence[str]) -> dict[str, str]:
    """Return the Python of each NAME=PYTHON, checked."""
    found = {}
    for entry in given:
        name, _, python = entry.partition("=")
        if name not in SCRIPTS or not python:
            raise SettingError(f"--peer: got {entry!r}, allowed: NAME=PYTHON, NAME one of {', '.join(SCRIPTS)}")
        found[name] = str(Path(python).expanduser())
    return found


def show(result: JsonDict, console: Console) -> None:
    for label in TEMPERATURES:
        rates, over = result[label]["tokens_per_second"], result[label]["over"]
        if rates:
            console.print(report.grid(f"Tokens per second, {label}, by callers", rates, 0))
        rows = [
            [what, *(report.between(by.get(what)) for by in over.values())]
            for what in dict.fromkeys(what for by in over.values() for what in by)
        ]
        if rows:
            console.print(report.table(f"Ratios of turns, {label}: median (95 %)", ["", *over], rows))
    for name, problem in result.get("failures", {}).items():
        console.print(f"{name}: {problem}", markup=False)

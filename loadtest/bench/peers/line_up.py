"""Lines up who takes part in the bench `peers`: Covey alone in processes and behind Triton, the peers, and the
machine's limit.

All are there the whole time and asked in turns. Those who wait sleep.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from covey.contracts.errors import SettingError
from covey.contracts.profile import Profile
from covey.contracts.types import JsonDict
from covey.server import Server
from covey.text.tokenization import load_tokenizer
from covey_client.reports import Reports
from loadtest.bench import workload
from loadtest.bench.derive import drafting, with_drafters
from loadtest.bench.over_triton import OverTriton
from loadtest.bench.peers.asked import OverPipe, Peer, ours, pythons
from loadtest.bench.peers.measured import ALONE, FAST, SERVER, STREAMED
from loadtest.bench.peers.pipe import Pipe
from loadtest.bench.policies import COVEY, OFF
from loadtest.bench.session import Session
from loadtest.bench.work import Ask, Competitor, Run

PAIR_PROFILE = "aligned.toml"  # in the folder of an aligned pair
PROMPT_TOKENS = 32


@dataclass(frozen=True)
class Pair:
    """Names a target and its drafter, as they are served."""

    profile_name: str
    settings: Profile
    target: str
    drafter: str
    drafter_folder: str

    @classmethod
    def of(cls, session: Session, folder: str = "") -> Pair:
        """Return an aligned pair in its folder, else the profile's target and its first drafter."""
        wanted = session.wanted
        name = str(Path(folder) / PAIR_PROFILE) if folder else wanted.profile
        settings = drafting(name)
        drafter = settings.speculation.drafters[0]
        repository = wanted.options().repository_folder()
        target = settings.target.folder or wanted.target_folder(settings)
        source = settings.drafter.folder_of(drafter) or str(repository / drafter / "1")
        return cls(name, settings, target, drafter, source)

    def asks(self, count: int, tokens: int, temperature: float, seed: int) -> list[Ask]:
        """Return bundled prompts as ids of the target's own tokenizer, all of one length."""
        tokenizer = load_tokenizer(self.target)
        if tokenizer is None:
            raise SettingError(f"{self.target} has no tokenizer")
        asks = []
        for ask in workload.mixed(count, shortest=tokens, longest=tokens, seed=seed):
            ids = tokenizer.encode(ask.text).ids or [1]
            ids = (ids * PROMPT_TOKENS)[:PROMPT_TOKENS]
            asks.append(replace(ask, ids=tuple(ids), max_tokens=tokens, temperature=temperature))
        return asks


@dataclass
class Cast:
    """Has everybody, up and loaded. What ends them is the context that made this."""

    pair: Pair
    server: Server
    pipes: Mapping[str, Pipe]  # of Covey alone, by name
    timed: Pipe
    limit: Pipe
    weight_bytes: int
    vocabulary: int
    peers: dict[str, Peer]
    modes: JsonDict

    def covey(self, choice: str, *, stream: bool = False) -> OverTriton:
        """Return Covey behind Triton: `off` or `fixed:K`, from which the policy does not learn, or the policy. Answers
        are whole, as the peers' are, or streams."""
        given: dict[str, object] = {"end_id": self.vocabulary - 1}  # no text holds it, so that none ends early
        given |= {} if choice == COVEY else {"speculation": choice}
        name = f"{SERVER} {choice}{STREAMED if stream else ''}"
        return OverTriton(self.server, name, stream=stream, settings=given)

    def plain(self) -> list[Competitor]:
        """Return Covey without drafts, in every way."""
        alone = [OverPipe(name, lambda pipe=pipe: pipe) for name, pipe in self.pipes.items()]
        return [*alone, self.covey(OFF), self.covey(OFF, stream=True)]

    def limits(self, callers: Sequence[int]) -> dict[int, dict[str, float]]:
        """Return the limits of this moment, and passes within seconds of them: milliseconds by callers."""
        limit = self.limit.call("measure", rows=list(callers))
        passes = self.timed.call("passes", shapes=[[each, 1] for each in callers], kinds=["pass", "fast"])
        reading = 1000 * self.weight_bytes / limit["bytes_per_s"]
        return {
            each: {
                "reading": reading,
                "products": limit["products_ms"][str(each)],
                "fast": passes["fast"][index],
                "pass": passes["pass"][index],
            }
            for index, each in enumerate(callers)
        }

    def costs(self, callers: int, depths: int) -> list[tuple[float, float]]:
        """Return the milliseconds of a pass that verifies so many drafts a row, 0 and up, and of a level of these
        drafts."""
        shapes = [[callers, 1 + depth] for depth in range(depths + 1)]
        found = self.timed.call("passes", shapes=shapes, kinds=["pass", "level"])
        return list(zip(found["pass"], found["level"]))

    def watched(self, callers: int, asks: Sequence[Ask], tenant: str) -> tuple[Run, dict[str, float]]:
        """Decode plainly behind Triton, in streams; return the run, and the stages of its rounds in which all callers
        decode."""
        reports = Reports(self.server.http_url)
        before = reports.last_round()
        run = self.covey(OFF, stream=True).run(asks, callers, tenant=tenant)
        rounds = [each for each in reports.rounds(before) if each.decoding == callers and not each.prefill_tokens]
        if not rounds:
            return run, {}
        waits = [1000 * (a.seconds - (a.first or 0.0)) / max(1, len(a.tokens) - 1) for a in run.answers]
        return run, {
            "served": 1000 * median(each.pass_seconds for each in rounds),
            "round": 1000 * median(each.plan_seconds + each.verify_seconds + each.commit_seconds for each in rounds),
            "client": median(waits),
        }


@contextmanager
def line_up(session: Session, folder: str = "") -> Iterator[Cast]:
    """Yield everybody, up and loaded, for the pair in a folder; "" is that of the profile."""
    wanted, pair = session.wanted, Pair.of(session, folder)
    with ExitStack() as stack:

        def alone(name: str, module: str, **given: object) -> tuple[Pipe, JsonDict]:
            with session.status(f"loading: {name}"):
                pipe, said = ours(name, module, target=pair.target, **given)
            stack.callback(pipe.close)
            return pipe, said

        made = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = with_drafters(pair.settings, made / "peers.toml", (pair.drafter,), policy=COVEY)
        served = pair.settings.target.numerics
        first, said = alone(ALONE, "alone", profile_name=str(path), numerics=served)
        second, _ = alone(FAST, "alone", profile_name=str(path), numerics="fast")
        timed, threads = alone("single passes", "timed", profile_name=str(path), drafter=pair.drafter_folder)
        limit, sizes = alone("limit", "limit", dtype=said["dtype"])
        peers = {}
        for name, python in pythons(wanted.peers).items():
            peers[name] = Peer(name, python, given_to_peers(pair, said["dtype"], made))
            stack.callback(peers[name].close)
        server = stack.enter_context(session.server(wanted.options(path)))
        vocabulary, weights = said["vocabulary"], sizes["weight_bytes"]
        modes = {"numerics": said["numerics"], "dtype": said["dtype"], "threads": threads["threads"]}
        pipes = {ALONE: first, FAST: second}
        yield Cast(pair, server, pipes, timed, limit, weights, vocabulary, peers, modes)


def given_to_peers(pair: Pair, dtype: str, kept: Path) -> JsonDict:
    """Return what every peer is to load, and where it may leave what it makes of it. It has all cores."""
    return {
        "target": pair.target,
        "drafter": pair.drafter_folder,
        "dtype": dtype,
        "threads": os.cpu_count() or 1,
        "kept": str(kept),
    }

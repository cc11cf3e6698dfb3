"""Lines up who takes part in the bench `peers`: Covey alone in processes and behind Triton, the peers, and the
machine's limit.

All are there the whole time and asked in turns. Those who wait sleep.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
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
from loadtest.bench.peers.measured import ALONE, SERVER, STREAMED
from loadtest.bench.peers.pipe import Pipe
from loadtest.bench.policies import COVEY, OFF
from loadtest.bench.session import Session, Wanted
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
    def of(cls, wanted: Wanted) -> Pair:
        """Return an aligned pair in its folder, else the profile's target and its first drafter."""
        name = str(Path(wanted.pairs[0]) / PAIR_PROFILE) if wanted.pairs else wanted.profile
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
    alone: Pipe  # of Covey alone in a process
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
        return [OverPipe(ALONE, lambda: self.alone), self.covey(OFF), self.covey(OFF, stream=True)]

    def limits(self, callers: Sequence[int]) -> dict[int, dict[str, float]]:
        """Return the limits of this moment, and passes within seconds of them: milliseconds by callers."""
        limit = self.limit.call("measure", rows=list(callers))
        passes = self.alone.call("passes", rows=list(callers))["ms"]
        reading = 1000 * self.weight_bytes / limit["bytes_per_s"]
        return {
            each: {"reading": reading, "products": limit["products_ms"][str(each)], "pass": passed}
            for each, passed in zip(callers, passes)
        }

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
def line_up(session: Session) -> Iterator[Cast]:
    """Yield everybody, up and loaded."""
    wanted, pair = session.wanted, Pair.of(session.wanted)
    with ExitStack() as stack:

        def own(name: str, module: str, **given: object) -> tuple[Pipe, JsonDict]:
            with session.status(f"loading: {name}"):
                pipe, said = ours(name, module, target=pair.target, **given)
            stack.callback(pipe.close)
            return pipe, said

        made = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = with_drafters(pair.settings, made / "peers.toml", (pair.drafter,), policy=COVEY)
        alone, said = own(ALONE, "alone", profile_name=str(path))
        limit, sizes = own("limit", "limit", dtype=said["dtype"])
        given = {
            "target": pair.target,
            "drafter": pair.drafter_folder,
            "dtype": said["dtype"],
            "threads": os.cpu_count() or 1,
            "kept": str(made),  # where a peer may leave what it makes of the models
        }
        peers = {name: Peer(name, python, given) for name, python in pythons(wanted.peers).items()}
        for peer in peers.values():
            stack.callback(peer.close)
        server = stack.enter_context(session.server(wanted.options(path)))
        modes = {key: said[key] for key in ("numerics", "dtype", "threads")}
        yield Cast(pair, server, alone, limit, sizes["weight_bytes"], said["vocabulary"], peers, modes)

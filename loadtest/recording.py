"""`python -m loadtest.recording OUT.json`: how often the bundled drafter's guesses are right, for emulated ones.

The target's own texts (temperature 1, the bundled prompts) are read by the drafter, which says at every place what its
best `RANKS` tokens would have been with the request's noise. Rounds are replayed over them: a round goes down the text
while the token that stands there is among these, and begins anew behind the first that is not. So a place at depth d
is one that a tree of that width reaches. Places of one depth are sorted by the first token's share of the race and cut
into `BINS` parts as large as one another; `covey.emulated.guesses` says what is kept of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from covey import profile, prompts
from covey.clock import RealClock
from covey.drafters.choosing import Choosing
from covey.emulated.guesses import VERSION
from covey.engine import Engine
from covey.planner.build import build
from covey.profile import SpeculationSettings
from covey.sampling.settings import SettingsTable
from covey.scheduler import Scheduler
from covey.server import Options
from covey.target.runner import TargetRunner
from covey.tokenization import load_tokenizer
from covey.types import Ints, JsonDict, Progress, Request, Sampling

RANKS, BINS, DEPTHS = 6, 10, 6
SUBJECTS = {"code": "code", "chat": "chat", "summary": "summarisation"}  # and "": all domains
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Place:
    """One place of a text: at which depth of its round, the ranks' shares and probabilities, and which was right."""

    depth: int
    shares: Array
    q: Array
    right: int  # RANKS: none of them


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.recording", description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--drafter", default="draft_general")
    parser.add_argument("--prompts", type=int, default=40, help="of each domain")
    parser.add_argument("--tokens", type=int, default=128, help="of each text")
    wanted = parser.parse_args(arguments)
    folder = Options().repository_folder()
    drafter: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder / wanted.drafter / "1").float().eval()
    texts = _texts(folder / "target" / "1", wanted.prompts, wanted.tokens)
    by_domain: dict[str, list[Place]] = {domain: [] for domain in prompts.DOMAINS}
    for (domain, start, ids), seed in zip(texts, itertools.count()):
        by_domain[domain] += _places(drafter, ids, start, seed)
    parts = {subject: by_domain[domain] for subject, domain in SUBJECTS.items()}
    parts[""] = [place for places in by_domain.values() for place in places]
    table = {
        "covey_guesses": VERSION,
        "name": wanted.out.stem,
        "origin": f"Recorded on the bundled target and {wanted.drafter}, temperature 1, by loadtest.recording: "
        f"{wanted.prompts} prompts a domain, {wanted.tokens} tokens each.",
        "subjects": {subject: _by_depth(places) for subject, places in parts.items()},
    }
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    wanted.out.write_text(_compact(table) + "\n")
    return 0


class _Texts:
    """Implements `covey.ports.Sink`: what was said."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}

    def publish(self, batch: Sequence[Progress]) -> None:
        for progress in batch:
            self.tokens.setdefault(progress.key, []).extend(progress.tokens.tolist())


def _texts(folder: Path, count: int, tokens: int) -> list[tuple[str, int, Ints]]:
    """The target's texts: domain, where the answer begins, and all ids; text n is seeded with n."""
    settings = profile.load(profile.DEFAULT_PROFILE)
    target = TargetRunner.load(folder, settings.target, token_budget=settings.scheduler.token_budget, name="target")
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    asked = [(domain, text) for domain in prompts.DOMAINS for text in prompts.load(domain)[:count]]
    ids = [np.asarray(tokenizer.encode(text).ids, np.int32) for _, text in asked]
    scheduler = Scheduler(
        max_running=16,
        max_waiting=len(asked),
        token_budget=settings.scheduler.token_budget,
        growth_tokens=tokens,
        block_size=settings.target.block_size,
    )
    sink = _Texts()
    engine = Engine(target, scheduler, build(SpeculationSettings(policy="off"), ()), sink, RealClock())
    for key, prompt in enumerate(ids):
        sampling = Sampling(temperature=1.0, seed=key, end_ids=target.info().end_ids)
        engine.submit(Request(key, prompt, tokens, sampling, len(prompt)))
    while engine.round():
        pass
    return [
        (domain, len(prompt), np.concatenate([prompt, np.asarray(sink.tokens[key], np.int32)]))
        for key, ((domain, _), prompt) in enumerate(zip(asked, ids))
    ]


@torch.inference_mode()
def _places(drafter: PreTrainedModel, ids: Ints, start: int, seed: int) -> Iterator[Place]:
    told = torch.from_numpy(ids[:-1].astype(np.int64))[None]
    logits = drafter(input_ids=told, use_cache=False).logits[0, start - 1 :].float()
    table = SettingsTable(1)
    slot = table.add(Sampling(temperature=1.0, seed=seed), start)
    places = np.arange(start, len(ids))
    choosing = Choosing(table, np.full(len(places), slot), places, 1, logits.shape[1])
    best, log_shares = choosing.top(logits, 0, RANKS, 1)
    log_q = logits.log_softmax(1).gather(1, torch.from_numpy(best)).numpy()
    right = np.where(best == ids[start:, None], np.arange(RANKS), RANKS).min(axis=1)
    depth = 0
    for at in range(len(places)):
        yield Place(depth, np.exp(log_shares[at]), np.exp(log_q[at]), int(right[at]))
        depth = depth + 1 if right[at] < RANKS and depth + 1 < DEPTHS else 0


def _by_depth(places: Sequence[Place]) -> list[JsonDict]:
    found = []
    for depth in range(DEPTHS):
        mine = sorted((place for place in places if place.depth == depth), key=lambda place: place.shares[0])
        parts = [part for part in np.array_split(np.arange(len(mine)), BINS) if len(part)]
        bins = [[mine[index] for index in part] for part in parts]
        found.append(
            {
                "places": [len(each) for each in bins],
                "share": [_mean([place.shares for place in each]) for each in bins],
                "q": [_mean([place.q for place in each]) for each in bins],
                "accepted": [_mean([np.arange(RANKS) == place.right for place in each]) for each in bins],
            }
        )
    return found


def _mean(values: Sequence[npt.NDArray[np.generic]]) -> list[float]:
    return [round(float(value), 4) for value in np.mean(np.asarray(values, np.float64), axis=0)]


def _compact(table: JsonDict) -> str:
    """A line for each list of numbers."""
    text = json.dumps(table, indent=1)
    return "".join(
        part if index % 2 == 0 else "[" + " ".join(part.split()) + "]" for index, part in enumerate(_split_lists(text))
    )


def _split_lists(text: str) -> list[str]:
    return re.split(r"\[([^\[\]]*)\]", text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

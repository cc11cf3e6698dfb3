"""Draws requests of mixed domains, and orders, by a seed. Knows no competitor."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from covey import prompts
from loadtest.bench.work import Ask

T = TypeVar("T")
SPECIALISTS = {"code": "draft_code", "edits": "draft_suffix"}  # drafters of the test pair by the domain they know best


def mixed(count: int, *, tokens: int, seed: int) -> list[Ask]:
    """Return `count` requests over all domains."""
    rng = random.Random(seed)
    texts = [(domain, text) for domain in prompts.DOMAINS for text in prompts.load(domain)]
    rng.shuffle(texts)
    asks = []
    for index in range(count):
        domain, text = texts[index % len(texts)]
        asks.append(Ask(text, tokens, domain=domain, seed=seed * 100_003 + index))
    return asks


def by_repetition(domain: str, repetitions: int, *, seed: int) -> list[str]:
    """Deal a prompt of the domain to each repetition, none twice while there are enough."""
    texts = prompts.load(domain)
    random.Random(f"{seed} {domain}").shuffle(texts)
    return [texts[repetition % len(texts)] for repetition in range(repetitions)]


def shuffled(entries: Sequence[T], *seeds: int) -> list[T]:
    """Return the items in a random order by the seeds: who runs leaves caches and threads in a state that affects
    whoever follows, so nobody should always follow the same."""
    return random.Random(str(seeds)).sample(list(entries), len(entries))


def unused_token(folder: str) -> int:
    """Return an id of a model that no text holds: as a request's end it leaves every length the workload's."""
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return int(config.get("text_config", config)["vocab_size"]) - 1

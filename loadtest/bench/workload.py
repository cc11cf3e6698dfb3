"""Draws requests of mixed domains, and orders, by a seed. Knows no competitor."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from covey import prompts
from loadtest.bench.work import Ask
from loadtest.questions import Prompt, Prompts

T = TypeVar("T")


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


def dealt(known: Prompts, count: int, turn: int, *, seed: int) -> list[tuple[str, Prompt]]:
    """Return `count` prompts with their domains, balanced over the domains. A prompt comes again in a later turn only
    after all others, and never twice in a turn that is smaller than the whole deck."""
    decks = [shuffled(each, seed, place) for place, each in enumerate(known.values())]
    deck = [card for cards in zip(*decks) for card in zip(known, cards)]
    return [deck[(turn * count + place) % len(deck)] for place in range(count)]


def shuffled(entries: Sequence[T], *seeds: int) -> list[T]:
    """Return the items in a random order by the seeds. A run leaves caches and threads in a state that affects the next
    one, so no competitor should always follow the same one."""
    return random.Random(str(seeds)).sample(list(entries), len(entries))


def unused_token(folder: str) -> int:
    """Return an id of a model that is in no text: as a request's end token it leaves all lengths to the workload."""
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return int(config.get("text_config", config)["vocab_size"]) - 1

"""An answer that broke off is gone on with from any of its tokens: prompt and what came as `input_ids`,
`num_prompt_tokens`, `max_tokens` less by what came, and everything else as it was. The rest is the one that it would
have been: tokens, text and end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from covey.contracts.clock import RealClock
from covey.contracts.errors import BadField
from covey.requests.roster import Roster
from covey.text.streaming import Streamer
from covey.text.text import visible_text
from covey.text.tokenization import load_tokenizer
from covey.tritonio.fields import RequestParser
from tests.bundled import BUDGET, MODELS, SETTINGS, drafter, target, texts
from tests.engines import engine_to, finish
from tests.fakes import ManualClock
from tests.static_planner import StaticPlanner
from tests.text.test_streaming import Listener

DRAFTER, LENGTH = "draft_ngram", 28
TOKENIZER = load_tokenizer(MODELS / "target" / "1")


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    text: str
    finish: str


class Serving:
    """Everything behind the tensors of a request but Triton."""

    def __init__(self) -> None:
        self.streamer = Streamer(TOKENIZER, RealClock())
        roster = Roster((DRAFTER,), ManualClock())
        self.parser = RequestParser(TOKENIZER, target().info(), SETTINGS.limits, roster)
        drafters, size = {DRAFTER: drafter(DRAFTER)}, SETTINGS.target.block_size
        limits = {"token_budget": BUDGET, "growth_tokens": 64, "block_size": size}
        self.engine = engine_to(self.streamer, target(), StaticPlanner(2), drafters, **limits)
        self.streamer.start(self.engine)
        self.keys = 0

    def ask(self, *, needs_state: bool = False, **settings: Any) -> Answer:
        self.keys += 1
        tensors = {name: np.array(value) for name, value in settings.items()}
        tensors["input_ids"] = tensors["input_ids"].astype(np.int32)
        wanted = self.parser.parse(self.keys, 0.0, tensors.get)
        listener = Listener(needs_state=needs_state)
        self.streamer.begin(wanted.request, listener, stream=True, stop_words=wanted.stop_words)
        self.engine.submit(wanted.request)
        while not listener.done.is_set():
            self.engine.round()
        finish(self.engine)
        chunks = listener.chunks
        text, ended = "".join(chunk.text for chunk in chunks), chunks[-1].finish
        if needs_state:  # as the tokenizer's model makes text of it
            text = "".join(_made_elsewhere(chunk) for chunk in chunks)
        assert ended is not None
        return Answer([int(token) for chunk in chunks for token in chunk.ids], text, ended.value)

    def settings(self, rng: random.Random, number: int) -> dict[str, Any]:
        """Those that count or look at what came."""
        prompt = texts()[number].tolist()
        wanted: dict[str, Any] = {"input_ids": prompt, "max_tokens": LENGTH, "seed": number, "temperature": 0.9}
        plain = self.ask(**wanted)
        if number % 2:  # an end token that would come early but for `min_tokens`
            at = rng.randrange(1, len(plain.tokens) // 2)
            wanted |= {"end_id": plain.tokens[at], "min_tokens": rng.randrange(at + 1, LENGTH)}
        if number % 3 == 0:
            wanted |= {"frequency_penalty": 1.5, "presence_penalty": 0.5, "repetition_penalty": 1.3}
        if number % 2 == 0:
            text = self.ask(**wanted).text
            start = rng.randrange(len(text) // 2, len(text) - 8)
            wanted["stop_words"] = np.array([text[start : start + 8].encode(), b"never said"], np.object_)
        return wanted


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    made = Serving()
    yield made
    made.streamer.stop()


def _made_elsewhere(chunk: Any) -> str:
    state, new = chunk.state, chunk.ids.tolist()
    seen = visible_text(TOKENIZER, state.context, state.before, state.stop_words, final=False)
    whole = visible_text(TOKENIZER, state.context, state.before + new, state.stop_words, final=state.final)
    return whole[len(seen) :]


@pytest.mark.parametrize("number", [*range(4), *(pytest.param(number, marks=pytest.mark.slow) for number in (4, 5))])
def test_the_rest_is_what_it_would_have_been(serving: Serving, number: int) -> None:
    rng = random.Random(number)
    wanted = serving.settings(rng, number)
    prompt, whole = wanted["input_ids"], serving.ask(**wanted)
    # The last ones but one may be in the middle of a stop word.
    for cut in {rng.randrange(1, len(whole.tokens)), *range(max(1, len(whole.tokens) - 3), len(whole.tokens))}:
        came = whole.tokens[:cut]
        before = visible_text(
            TOKENIZER, prompt[-8:], came, [word.decode() for word in wanted.get("stop_words", [])], final=False
        )
        again = {"input_ids": prompt + came, "num_prompt_tokens": len(prompt), "max_tokens": LENGTH - cut}
        rest = serving.ask(**(wanted | again), needs_state=bool(cut % 2))
        assert rest.tokens == whole.tokens[cut:], (number, cut)
        assert before + rest.text == whole.text, (number, cut)
        assert rest.finish == whole.finish


def test_an_answer_that_has_ended_does_not_go_on(serving: Serving) -> None:
    prompt = texts()[3].tolist()
    whole = serving.ask(input_ids=prompt, max_tokens=20)
    word = whole.text[4:8].encode()
    wanted = {"max_tokens": 5, "num_prompt_tokens": len(prompt), "stop_words": np.array([word], np.object_)}
    assert serving.ask(input_ids=prompt + whole.tokens, **wanted) == Answer([], "", "stop")


def test_min_tokens_is_bounded_by_all_of_the_output(serving: Serving) -> None:
    def parse(**settings: int) -> Any:
        tensors = {name: np.array([value]) for name, value in settings.items()}
        tensors["input_ids"] = np.array([1, 2, 3, 4, 5], np.int32)
        return serving.parser.parse(1, 0.0, tensors.get).request

    assert parse(max_tokens=6, num_prompt_tokens=2, min_tokens=9).sampling.min_tokens == 9
    with pytest.raises(BadField, match="min_tokens: got 10, allowed: 0 to 9"):
        parse(max_tokens=6, num_prompt_tokens=2, min_tokens=10)
    with pytest.raises(BadField, match="min_tokens: got 7, allowed: 0 to 6"):
        parse(max_tokens=6, min_tokens=7)

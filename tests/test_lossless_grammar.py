"""The bundled models under grammars: the text fits, and speculation does not change it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from covey.contracts.types import Finish, Request, Rule, Sampling
from covey.text.grammar import Grammar, of_lark, of_regex, of_schema, problem, tokenizer_of
from covey.text.tokenization import load_tokenizer
from tests.bundled import DRAFTED, MODELS, drafted, serve, target, texts
from tests.fakes import Collector, request
from tests.static_planner import StaticPlanner

LENGTH, COUNT = 40, 8
FOLDER = str(MODELS / "target" / "1")
SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "words": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]{2,6}$"}, "maxItems": 2},
        "done": {"type": "boolean"},
    },
    "required": ["colour", "done"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
REGEX = r"[A-Z][a-z]{1,9}(,? [a-z]{1,9}){3,6}\."
GRAMMARS = ("", of_schema(json.dumps(SCHEMA)), of_regex(REGEX), of_schema("{}"))


def sampling_of(number: int) -> Sampling:
    """Each grammar cold and warm, the regular expression with penalties and bias beside it."""
    sampling = Sampling(0.8 * (number // 4), seed=number, end_ids=target().info().end_ids, grammar=GRAMMARS[number % 4])
    if number % 4 == 2:
        return replace(sampling, presence_penalty=0.6, logit_bias=((266, 2.0), (300, -100.0)))
    return sampling


def asked(rule: Rule = Rule.COUPLED) -> list[Request]:
    return [
        request(number, texts()[number * 23], LENGTH, sampling=replace(sampling_of(number), rule=rule))
        for number in range(COUNT)
    ]


@pytest.fixture(scope="module")
def plain() -> Collector:
    """What the target alone makes of them."""
    return serve(StaticPlanner(0, 1), asked())[0]


def said(tokens: list[int]) -> str:
    tokenizer = load_tokenizer(FOLDER)
    assert tokenizer is not None
    return str(tokenizer.decode(tokens))


def check_fit(sink: Collector) -> int:
    """Every text is the beginning of one that fits, and ends where it may. How many have ended so."""
    ended, end_ids = 0, target().info().end_ids
    for number in range(COUNT):
        source = GRAMMARS[number % 4]
        if not source:
            continue
        tokens, grammar = sink.tokens[number], Grammar(source, tokenizer_of(FOLDER, 4096, end_ids))
        finished = sink.finish(number) is Finish.EOS
        grammar.follow(np.asarray(tokens[:-1] if finished else tokens, np.int32))
        assert grammar.after([]) is not None, said(tokens)
        ended += finished
        if finished and number % 4 == 1:
            found = json.loads(said(tokens[:-1]))
            assert found["colour"] in SCHEMA["properties"]["colour"]["enum"]  # type: ignore[index]
            assert isinstance(found["done"], bool)
    return ended


@pytest.mark.timeout(600)
def test_texts_fit_and_no_draft_changes_them(plain: Collector) -> None:
    assert check_fit(plain) >= 3
    for case in DRAFTED:
        sink = drafted(asked(), case)
        assert sink.tokens == plain.tokens, case
        assert {key: sink.finish(key) for key in sink.ended} == {key: plain.finish(key) for key in plain.ended}
        if case.drafter == "draft_general":
            held = [sink.ended[key] for key in range(COUNT) if key % 4 == 1]
            share = sum(each.accepted for each in held) / sum(each.drafted for each in held)
            assert share > 0.25, f"{share}: drafts know the grammar"


@pytest.mark.timeout(600)
def test_a_grammar_that_hits_a_limit_ends_its_text_at_the_same_token_with_drafts() -> None:
    """The parser's limits after some tokens, and the lexer's behind a cheap start, each cold and warm."""
    nested = of_lark("start: a{1,1000}\na: b{1,1000}\nb: c{1,1000}\nc: /x|y/")
    hidden = of_regex("xxxxxxxx(b|c)" + "[ab]?" * 200 + "d")
    keys = (0, 1, 4, 5)
    for grammar in (nested, hidden):
        assert not problem(grammar, tokenizer_of(FOLDER, 4096, target().info().end_ids))
    heavy = [
        replace(item, sampling=replace(item.sampling, grammar=(nested, hidden)[item.key % 2]))
        for item in asked()
        if item.key in keys
    ]
    plain, _ = serve(StaticPlanner(0, 1), heavy)
    ends = {key: plain.finish(key) for key in keys}
    assert ends[1] is ends[5] is Finish.ERROR
    for case in DRAFTED:
        sink = drafted(heavy, case)
        assert sink.tokens == plain.tokens, case
        assert {key: sink.finish(key) for key in keys} == ends


@pytest.mark.timeout(600)
def test_texts_fit_under_the_rejection_rule(plain: Collector) -> None:
    sink = drafted(asked(Rule.REJECTION), DRAFTED[0])
    check_fit(sink)
    for key in range(COUNT // 2):
        assert sink.tokens[key] == plain.tokens[key], "greedy is the same under both rules"


def test_a_text_that_goes_on_goes_on_in_its_grammar(plain: Collector) -> None:
    """As after preemption, or where a stream is taken up: output comes with the prompt, which is not of the text."""
    again = []
    longer = [item for item in asked() if len(plain.tokens[item.key]) > 5]
    assert len(longer) > COUNT // 2
    for item in longer:
        before = plain.tokens[item.key][:5]
        prompt = np.append(item.prompt, before).astype(np.int32)
        again.append(replace(item, prompt=prompt, max_tokens=item.max_tokens - len(before)))
    sink, _ = serve(StaticPlanner(0, 1), again)
    for item in longer:
        assert plain.tokens[item.key][:5] + sink.tokens[item.key] == plain.tokens[item.key]

"""What grammars allow, over drafts that are taken back and texts that go back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from covey.contracts.errors import SettingError
from covey.contracts.types import Ints, Sampling
from covey.sampling.penalties import constrained
from covey.text.grammar import Grammar, Grammars, Words, of_regex, of_schema, problem, tokenizer_of
from covey.text.tokenization import load_tokenizer
from tests.bundled import MODELS

FOLDER, VOCAB, END = str(MODELS / "target" / "1"), 4096, 0
SCHEMA = '{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}'
GRAMMARS = {"schema": of_schema(SCHEMA), "any": of_schema("{}"), "regex": of_regex(r"(yes|no)( [a-z]{2,8}){1,5}\.")}


def grammar(source: str) -> Grammar:
    return Grammar(source, tokenizer_of(FOLDER, VOCAB, (END,)))


def ids(text: str) -> Ints:
    tokenizer = load_tokenizer(FOLDER)
    assert tokenizer is not None
    return np.asarray(tokenizer.encode(text, add_special_tokens=False).ids, np.int32)


def tokens_in(allowed: Words | None) -> list[int]:
    assert allowed is not None
    return [int(token) for token in np.flatnonzero(np.unpackbits(allowed.view(np.uint8), bitorder="little"))]


@pytest.mark.parametrize("name", GRAMMARS)
def test_what_is_allowed_depends_on_the_text_alone(name: str) -> None:
    rng, compared = np.random.default_rng(5), 0
    for _ in range(3):
        kept, output = grammar(GRAMMARS[name]), list[int]()
        while len(output) < 25:
            kept.follow(np.asarray(output, np.int32))
            choices = tokens_in(kept.after([]))
            for _ in range(2):
                path: list[int] = []
                while len(path) < 4 and (allowed := kept.after(path)) is not None:
                    path.append(int(rng.choice(tokens_in(allowed))) if rng.random() < 0.8 else int(rng.integers(VOCAB)))
                fresh = grammar(GRAMMARS[name])
                fresh.follow(np.asarray(output + path[:-1], np.int32))
                expected, found = fresh.after([]), kept.after(path[:-1])
                assert (found is None) == (expected is None)
                assert found is None or tokens_in(found) == tokens_in(expected)
                compared += 1
            output.append(int(rng.choice(choices)))
            if output[-1] == END:
                break
            if rng.random() < 0.1:
                del output[-3:]
    assert compared > 10


def test_the_end_is_allowed_where_the_text_fits_and_nowhere_else() -> None:
    kept, text = grammar(of_regex("(ab){2}")), ids("abab")
    for size in range(len(text)):
        kept.follow(text[:size])
        assert END not in tokens_in(kept.after([]))
    kept.follow(text)
    assert tokens_in(kept.after([])) == [END]


@pytest.mark.parametrize(
    ("guidance", "text", "fits"),
    [
        ("", '{\n    "name": "a" }', True),
        ("", '{"name"\n\n', False),
        ("", '{"name"' + " " * 33, False),
        ('"x-guidance": {"item_separator": ","}, ', '{"name"\n\n', False),
        ('"x-guidance": {"whitespace_flexible": true}, ', '{"name"\n\n', True),
        ('"x-guidance": {"whitespace_flexible": false}, ', '{"name" ', False),
        ('"x-guidance": {"whitespace_pattern": " "}, ', '{"name" ', True),
    ],
)
def test_white_space_in_json_has_bounds_unless_its_schema_says_otherwise(guidance: str, text: str, fits: bool) -> None:
    kept = grammar(of_schema("{" + guidance + SCHEMA[1:]))
    kept.follow(ids(text))
    assert (kept.after([]) is not None and len(tokens_in(kept.after([]))) > 0) == fits


def test_what_does_not_fit_allows_nothing_and_is_forgotten() -> None:
    kept, text = grammar(of_regex("(ab){2}")), ids("abab")
    wrong = int(ids("x")[0])
    kept.follow(text[:1])
    assert kept.after([wrong]) is None
    assert kept.after([-1]) is None
    assert kept.after([VOCAB + 7]) is None
    kept.follow(np.append(text[:1], wrong).astype(np.int32))
    assert kept.after([]) is None
    kept.follow(text)
    assert tokens_in(kept.after([])) == [END]


def test_what_cannot_be_compiled_says_why() -> None:
    tokenizer = tokenizer_of(FOLDER, VOCAB, (END,))
    assert problem(GRAMMARS["schema"], tokenizer) == ""
    assert "unclosed" in problem(of_regex("(ab"), tokenizer)
    assert "no text fits" in problem(of_schema('{"$ref": "#"}'), tokenizer)
    assert "objec" in problem(of_schema('{"type": "objec"}'), tokenizer)


@pytest.mark.parametrize("ends", [(), (VOCAB,), (VOCAB, VOCAB + 7)])
def test_without_an_end_token_that_the_model_has_there_is_no_grammar(ends: tuple[int, ...]) -> None:
    with pytest.raises(SettingError, match="the model has no end token, which grammars need"):
        tokenizer_of(FOLDER, VOCAB, ends)
    kept = Grammars(FOLDER, VOCAB)
    kept.add(3, Sampling(grammar=GRAMMARS["any"], end_ids=ends))
    assert kept.get(3) is None
    assert tokenizer_of(FOLDER, VOCAB, (*ends, END)).eos_tokens == [END]


def test_where_tokens_have_no_text_a_grammar_is_not_known() -> None:
    kept = Grammars("/nowhere", VOCAB)
    kept.add(3, Sampling(grammar=GRAMMARS["any"], end_ids=(END,)))
    assert kept.get(3) is None
    here = Grammars(FOLDER, VOCAB)
    here.add(3, Sampling(grammar=GRAMMARS["any"], end_ids=(END,)))
    here.add(4, Sampling(end_ids=(END,)))
    assert here.get(3) is not None
    assert here.get(4) is None
    here.remove(3)
    assert here.get(3) is None


@pytest.mark.parametrize("outputs", [VOCAB - 60, VOCAB + 100])
@pytest.mark.parametrize("added", [(), ("<a>", "<b>")])
def test_a_grammar_says_the_same_whatever_the_model_s_outputs_are_padded_to(
    outputs: int, added: tuple[str, ...], tmp_path: Path
) -> None:
    """Of a text whose tokens all of them have, for the tokens that they have."""
    tokenizer = load_tokenizer(FOLDER)
    assert tokenizer is not None
    tokenizer.add_tokens(list(added))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    kept, expected = (
        Grammar(GRAMMARS["any"], tokenizer_of(folder, size, (END,)))
        for folder, size in ((str(tmp_path), outputs), (FOLDER, VOCAB))
    )
    for text in (ids(""), ids('{"na')):
        masks = []
        for each, width in ((kept, outputs), (expected, VOCAB)):
            each.follow(text)
            logits = constrained(np.zeros((2, width), np.float32), np.arange(2), [each.after([]), None])
            masks.append(np.isfinite(logits[0]))
            assert not np.isfinite(logits[1]).any()
        both = min(outputs, VOCAB)
        assert masks[0][:both].tolist() == masks[1][:both].tolist()
        assert masks[0][:both].any()
        assert not masks[0][both:].any()

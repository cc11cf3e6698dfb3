"""What a request's fields may say, and where they may say it."""

from __future__ import annotations

import dataclasses
import pkgutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from covey.contracts.errors import BadField
from covey.contracts.profile import LimitSettings
from covey.contracts.types import NO_OBJECTIVE, Objective, Rule, TargetInfo
from covey.tritonio.fields import RequestParser
from covey_client import wire
from covey_client.wire import INPUT_BY_NAME, INPUTS, OUTPUTS
from tests.bundled import MODELS
from tests.fakes import HashTarget
from tests.tritonio import adapters
from tests.tritonio.parsing import INFO, ids, parser, text

FOLDER = MODELS / "target" / "1"


def parse(parser: RequestParser, parameters: dict[str, Any] | None = None, **tensors: Any) -> Any:
    given = ids(5) | {name: np.array([value]) for name, value in tensors.items()}
    return parser.parse(1, 0.0, given.get, parameters).request


def test_nothing_is_written_where_the_prompt_is_scored_alone() -> None:
    found = parse(parser(), max_tokens=0, return_prompt_log_probs=True)
    assert (found.max_tokens, found.sampling.prompt_logprobs) == (0, True)
    with pytest.raises(BadField, match=r"^max_tokens: got 0, allowed: at least 1, or 0 with return_prompt_log_probs"):
        parse(parser(), max_tokens=0)
    emulated = parser(replace(INFO, device="emulated"))
    with pytest.raises(BadField, match=r"^return_prompt_log_probs: got True, allowed: false: an emulated target"):
        parse(emulated, return_prompt_log_probs=True)


@pytest.mark.parametrize("name", [field.name for field in INPUTS])
def test_a_setting_that_comes_as_a_parameter_is_not_ignored(name: str) -> None:
    with pytest.raises(BadField, match=rf"^{name}: got 1, allowed: an input tensor of this name"):
        parse(parser(), {name: 1})


@pytest.mark.parametrize("field", [field for field in (*INPUTS, *OUTPUTS) if field.part], ids=lambda field: field.name)
def test_the_class_that_takes_a_field_as_it_comes_has_an_attribute_for_it(field: wire.Field) -> None:
    attributes = {each.name: each for each in dataclasses.fields(pkgutil.resolve_name(field.part))}
    default = attributes[field.attribute].default
    assert field in OUTPUTS or default in (field.default, dataclasses.MISSING)


def test_the_table_and_the_rules_agree() -> None:
    assert INPUT_BY_NAME["verification"].choices == tuple(rule.value for rule in Rule)


def test_parameters_that_are_triton_s_own_pass_and_unknown_ones_do_not() -> None:
    assert parse(parser(), {"triton_enable_empty_final_response": True}).speculation == "auto"
    with pytest.raises(BadField, match="temprature: got 1, allowed: no such setting; near it: temperature"):
        parse(parser(), {"temprature": 1})


def test_an_empty_word_is_none() -> None:
    """A parser without a tokenizer refuses every other."""
    assert parser().parse(1, 0.0, {**ids(5), "stop_words": text("")}.get).stop_words == ()
    assert parse(parser(), bad_words=b"").sampling.bad_words == ()
    with pytest.raises(BadField, match="stop_words: got ''"):
        parser().parse(1, 0.0, {**ids(5), "stop_words": text("", "a")}.get)


def test_neutral_values_ask_for_nothing_and_others_are_refused() -> None:
    neutral = {field.name: field.default for field in wire.NEUTRAL} | {"pad_id": 2, "length_penalty": 1.0}
    assert parse(parser(), seed=1, **neutral) == parse(parser(), seed=1)
    others = {"beam_width": 2, "num_return_sequences": 0, "return_context_logits": True, "return_perf_metrics": True}
    for name, value in others.items():
        with pytest.raises(BadField, match=f"^{name}: got {value}"):
            parse(parser(), **{name: value})


def test_drafts_are_refused_where_nobody_drafts() -> None:
    with pytest.raises(BadField, match="speculation: got 'fixed:3', allowed: auto or off: this server has no drafters"):
        parse(parser(), speculation=b"fixed:3")
    with pytest.raises(BadField, match="num_draft_tokens: got 3, allowed: 0: this server has no drafters"):
        parse(parser(), num_draft_tokens=3)
    assert parse(parser(), num_draft_tokens=0).speculation == "off"
    assert parse(parser(), speculation=b"auto").speculation == "auto"
    some = parser(drafters=["one"])
    assert parse(some, speculation=b"fixed:3").speculation == "fixed:3"
    assert parse(some, num_draft_tokens=3).speculation == "fixed:3"


def test_an_objective_is_its_class_s_and_the_request_s_own() -> None:
    assert parse(parser()).objective == NO_OBJECTIVE
    assert parse(parser(), slo_class=b"chat").objective == Objective("chat", 1.0, 0.05)
    assert parse(parser(), slo_class=b"chat", slo_tpot_ms=np.float32(20)).objective == Objective("chat", 1.0, 0.02)
    assert parse(parser(), slo_ttft_ms=np.float32(250)).objective == Objective("", 0.25)
    assert not parse(parser(), slo_class=b"interactive").objective.measured
    with pytest.raises(BadField, match="slo_class: got 'fast', allowed: '', 'interactive', 'chat', 'batch'"):
        parse(parser(), slo_class=b"fast")


@pytest.mark.parametrize("prompt", ["", "a" * 33, "ä" * 17])
def test_the_ensemble_s_tokenizer_refuses_what_covey_refuses(monkeypatch: pytest.MonkeyPatch, prompt: str) -> None:
    module, fake = adapters.load(monkeypatch, "tokenizer")
    model = module.TritonPythonModel()
    model._limits = LimitSettings(prompt_bytes=32)
    fake.get_input_tensor_by_name.return_value.as_numpy.return_value = text(prompt)
    with pytest.raises(BadField) as here:
        model._encode(object())
    with pytest.raises(BadField) as there:
        parser(limits=model._limits).parse(1, 0.0, {"text_input": text(prompt)}.get)
    assert str(here.value) == str(there.value)


def test_an_answer_whose_length_nobody_said_is_as_long_as_the_context_leaves() -> None:
    for blocks, length in ((100, 15), (2, min(15, 2 * INFO.block_size - 3))):
        found = parser(replace(INFO, total_blocks=blocks), limits=LimitSettings(max_tokens=15))
        assert found.parse(1, 0.0, ids(5, 6, 7).get).request.max_tokens == length
    with pytest.raises(BadField, match=r"the context"):
        found.parse(1, 0.0, ids(*[5] * 2 * INFO.block_size).get)


def biased(tokens: list[int], values: list[float]) -> Any:
    given = {"logit_bias_ids": np.array(tokens, np.int32), "logit_bias": np.array(values, np.float32)}
    return parser().parse(1, 0.0, {**ids(5), **given}.get).request.sampling


def test_bias_is_by_token_and_within_bounds() -> None:
    assert biased([], []).logit_bias == ()
    assert biased([7, 3], [-100.0, 0.5]).logit_bias == ((7, -100.0), (3, 0.5))
    for tokens, values, problem in (
        ([7], [], "logit_bias: got '0 values', allowed: one for each of the 1 logit_bias_ids"),
        ([7, 97], [0, 0], "logit_bias_ids: got 97, allowed: token ids from 0 to 96"),
        ([-1], [0], "logit_bias_ids: got -1"),
        ([7], [-100.5], "logit_bias: got -100.5, allowed: -100 to 100"),
        ([7], [float("nan")], "logit_bias: got nan"),
        ([7, 7], [1, 1], "logit_bias_ids: .*each token once"),
        ([0] * 1025, [0] * 1025, "logit_bias_ids: got '1025 tokens', allowed: at most 1024"),
    ):
        with pytest.raises(BadField, match=problem):
            biased(tokens, values)


def larger_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    tokenizer.add_special_tokens(["<FILL_ME>"])
    return tokenizer


def test_tokens_that_the_tokenizer_has_and_the_model_lacks_are_refused_by_name() -> None:
    """A fine-tune may have added them to its tokenizer alone. The model's own texts are not concerned."""
    own = parser(replace(INFO, vocab_size=4096), larger_tokenizer())
    assert parse(own, bad_words=b"hi", logit_bias_ids=4095, logit_bias=1.0).sampling.bad_words
    for given, field in (
        (ids(5, 4096), "input_ids"),
        ({"input_ids": None, "text_input": text("hi <FILL_ME>")}, "text_input"),
        ({"bad_words": text("hi", "<FILL_ME>")}, "bad_words"),
        ({"logit_bias_ids": np.array([4096]), "logit_bias": np.array([1.0])}, "logit_bias_ids"),
    ):
        tensors: dict[str, Any] = {**ids(5), **given}
        problem = rf"^{field}: got 4096, allowed: token ids from 0 to 4095: the model lacks this one, '<FILL_ME>'$"
        with pytest.raises(BadField, match=problem):
            own.parse(1, 0.0, tensors.get)


HERE = replace(HashTarget(end_ids=(0,)).info(), folder=str(FOLDER), vocab_size=4096)


def fitted(info: TargetInfo = HERE, **tensors: Any) -> Any:
    return parse(parser(info), **tensors).sampling


def test_grammars_are_compiled_before_the_target_sees_them() -> None:
    assert fitted().grammar == ""
    assert "json_schema" in fitted(grammar_json=b'{"type": "object"}').grammar
    assert "a+" in fitted(grammar_regex=b"a+").grammar
    assert "a+" in fitted(grammar_regex=b"a+", end_id=0).grammar
    assert "start: " in fitted(grammar_lark=b'start: "a" | "b"').grammar
    for settings, problem in (
        ({"grammar_json": b"{"}, "grammar_json: got '{', allowed: "),
        ({"grammar_json": b"5"}, "grammar_json: got '5', allowed: "),
        ({"grammar_json": b'{"type": "objec"}'}, "grammar_json: .*Invalid type: objec"),
        ({"grammar_regex": b"(a"}, "grammar_regex: .*unclosed group"),
        ({"grammar_lark": b"start: missing"}, "grammar_lark: .*missing"),
        ({"grammar_regex": b"a", "grammar_json": b"{}"}, "grammar_regex: .*one grammar, this or grammar_json"),
        ({"grammar_regex": b"a", "min_tokens": 3}, "min_tokens: got 3, allowed: 0 with a grammar"),
        ({"grammar_regex": b"a", "end_id": 5}, "end_id: got 5, allowed: the model's own with a grammar"),
        ({"grammar_regex": b"a" * 65537}, "grammar_regex: .*at most 65536 bytes"),
        ({"grammar_regex": b"a", "info": replace(HERE, device="emulated")}, "grammar_regex: .*an emulated target"),
        ({"grammar_regex": b"a", "info": replace(HERE, folder="/nowhere")}, "grammar_regex: .*no tokenizer"),
        ({"grammar_regex": b"a", "info": replace(HERE, end_ids=())}, "grammar_regex: .*no end token"),
    ):
        with pytest.raises(BadField, match=problem) as found:
            fitted(**settings)  # type: ignore[arg-type]
        assert len(str(found.value)) < 600


def test_a_grammar_is_compiled_without_the_tokens_that_the_model_lacks(tmp_path: Path) -> None:
    larger_tokenizer().save(str(tmp_path / "tokenizer.json"))
    info = replace(HERE, folder=str(tmp_path))
    assert fitted(info, grammar_regex=b"a+").grammar
    with pytest.raises(BadField, match=r"^grammar_lark: .*<FILL_ME>"):
        fitted(info, grammar_lark=b"start: <FILL_ME>")

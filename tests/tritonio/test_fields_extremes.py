"""Settings at the ends of their ranges and far outside, and tensors of any shape and bits: a field is refused by its
name, or every draw works."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from covey.contracts.errors import BadField
from covey.contracts.types import Request, Sampling, Trees
from covey.drafters.choosing import Choosing
from covey.sampling.drawing import Context, SettingsTable, draw
from covey.sampling.proposals import propose_rejection
from covey.sampling.rejection import verify_chains
from covey.tritonio import fields
from covey_client.wire import INPUT_BY_NAME, INPUTS, Field
from tests.fakes import VOCAB
from tests.tritonio.parsing import ids, parser, text
from tests.tritonio.test_slow_jobs import TOKENIZER

NUMBERS = {"FP32": np.float32, "INT32": np.int32, "UINT64": np.uint64, "BOOL": np.bool_}
REALS = [field for field in INPUTS if field.dtype == "FP32"]
SAMPLED = [*REALS, *(INPUT_BY_NAME[name] for name in ("top_k", "min_tokens", "seed", "end_id"))]
LEAST = float(np.nextafter(np.float32(0), np.float32(1)))
LARGEST = float(np.finfo(np.float32).max)


def parse(**values: Any) -> Request:
    """The request behind settings as they arrive, each in its tensor's own type."""
    tensors = ids(5, 6)
    for name, value in values.items():
        dtype = INPUT_BY_NAME[name].dtype
        tensors[name] = np.array([value], NUMBERS.get(dtype, np.object_))
    if "logit_bias" in values:
        tensors["logit_bias_ids"] = np.array([3], np.int32)
    return parser().parse(1, 0.0, tensors.get).request


@pytest.mark.parametrize(
    ("name", "value"),
    [(field.name, value) for field in REALS for value in (math.nan, math.inf, -math.inf, LARGEST, -LARGEST, 1e30)]
    + [(name, -LEAST) for name in ("temperature", "top_p", "min_p", "repetition_penalty")]
    + [("repetition_penalty", value) for value in (0.0, LEAST, 1e-38, 0.0099, 100.01)]
    + [("slo_tpot_ms", 0.0), ("slo_ttft_ms", 0.0)]
    + [("temperature", 100.01), ("top_p", 0.0), ("top_p", -0.0), ("top_p", 1.0000001), ("min_p", 1.0000001)]
    + [(name, value) for name in ("presence_penalty", "frequency_penalty") for value in (1e38, -1e38, 100.01)]
    + [("top_k", value) for value in (-1, -(1 << 31), (1 << 31) - 1)]
    + [("max_tokens", value) for value in (0, -1, -(1 << 31), (1 << 31) - 1)]
    + [("min_tokens", value) for value in (-1, (1 << 31) - 1)]
    + [("priority", value) for value in (-(1 << 31), (1 << 31) - 1, -1001, 1001)]
    + [("end_id", value) for value in (-2, VOCAB, (1 << 31) - 1)]
    + [("num_prompt_tokens", value) for value in (0, -1, 3, (1 << 31) - 1)]
    + [("num_draft_tokens", value) for value in (-2, -1, 33, (1 << 31) - 1)]
    + [("tenant", b"t" * 257), ("tenant", "ü".encode() * 129), ("tenant", b"\xff")]
    + [("stop_words", b"w" * (8 << 20)), ("bad_words", b"w" * (8 << 20)), ("bad_words", b"\xff")]
    + [("speculation", b"fixed:" + depth) for depth in (b"0", b"x", b"9" * 3, b"9" * 4000, b"9" * 5000)]
    + [("speculation", b"fixed:+3"), ("speculation", "fixed:٣".encode()), ("verification", b"x" * (1 << 20))],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(BadField, match=rf"^{name}: got .*, allowed: ") as found:
        parse(**{name: value})
    assert found.value.code == "INVALID_ARG"
    assert len(str(found.value)) < 300, "megabytes of a setting are not sent back"


@pytest.mark.parametrize("field", REALS, ids=lambda field: field.name)
def test_a_refusal_names_the_range_that_the_table_has(field: Any) -> None:
    with pytest.raises(BadField, match=f"{field.low:g} to {field.high:g}$"):
        parse(**{field.name: math.nan})


@pytest.mark.parametrize(
    "field", [*REALS, INPUT_BY_NAME["top_k"], INPUT_BY_NAME["priority"]], ids=lambda field: field.name
)
def test_the_ends_of_a_range_belong_to_it(field: Any) -> None:
    kind = NUMBERS[field.dtype]
    for end, beyond in ((field.low, -np.inf), (field.high, np.inf)):
        value = kind(end)  # 0.01 and its like are no float32: whoever writes them means the bound
        if field.above and end == field.low:
            value = np.nextafter(value, kind(-beyond))
        parse(**{field.name: value})


def test_seeds_of_all_64_bits_stay_what_they_are() -> None:
    for seed in (0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
        assert parse(seed=seed).sampling.seed == seed
    tokens = set()
    for seed in (0, (1 << 63), (1 << 64) - 1):
        table = SettingsTable()
        slot = np.array([table.add(Sampling(temperature=1.0, seed=seed), 0)] * 8, np.int32)
        tokens.add(tuple(draw(torch.zeros(8, VOCAB), table, slot, np.arange(8, dtype=np.int32)).tokens.tolist()))
    assert len(tokens) == 3


@pytest.mark.parametrize("value", [0.0, -0.0, LEAST, 1e-38])
def test_no_temperature_is_too_small(value: float) -> None:
    assert parse(temperature=value).sampling.greedy


def field_holds(name: str, value: float) -> bool:
    field, value = INPUT_BY_NAME[name], float(np.float32(value))
    return field.low <= value <= field.high and not (field.above and value == field.low)


WITHIN = {
    field.name: st.floats(float(np.float32(field.low)), field.high, width=32)
    if field.low != 0.01
    else st.floats(float(np.nextafter(np.float32(0.01), np.float32(1))), field.high, width=32)
    for field in REALS
} | {
    "top_k": st.sampled_from([0, 1, 2, VOCAB - 1, VOCAB, VOCAB + 1, 1 << 30]),
    "min_tokens": st.integers(0, 16),
    "seed": st.integers(0, (1 << 64) - 1),
    "end_id": st.integers(-1, VOCAB - 1),
}
EDGES = st.sampled_from([0.0, -0.0, LEAST, 1e-38, 1e-10, 1e-6, 1e-5, 1.0 - 2.0**-24, 1.0, 99.99, 100.0, -100.0])
ANY = {field.name: st.floats(width=32) | EDGES for field in REALS}
VALUES = st.fixed_dictionaries({}, optional=WITHIN) | st.fixed_dictionaries({}, optional=ANY)
LOGITS = st.sampled_from(["flat", "usual", "rounded", "peaky", "huge", "tiny"])


def logits_of(kind: str, seed: int, rows: int) -> torch.Tensor:
    values = torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    if kind == "peaky":
        values[:, seed % VOCAB] += 1e4
    return {
        "flat": values * 0,
        "rounded": values.bfloat16().float(),
        "huge": values * 1e30,
        "tiny": values * 1e-30,
    }.get(kind, values)


def assert_everything_draws(sampling: Sampling, kind: str, seed: int) -> None:
    """Both rules, with and without a draft, and what drafters do, give tokens of the vocabulary."""
    rows, table = 6, SettingsTable()
    slots = np.array([table.add(sampling, 2) for _ in range(rows)], np.int32)
    wide = slots.astype(np.int64)
    history = np.random.default_rng(seed).integers(0, VOCAB, 8).astype(np.int32)
    positions = np.arange(8, 8 + rows, dtype=np.int32)
    rounds = np.zeros(rows, np.int32)
    logits = logits_of(kind, seed, 2 * rows)
    contexts: list[Context | None] = [Context(history)] * (2 * rows)
    drawn = draw(logits[:rows], table, slots, positions, contexts[:rows])
    assert not drawn.faults.any(), sampling
    tokens = [drawn.tokens]
    plain = verify_chains(logits[:rows], table, slots, positions, contexts[:rows], Trees.empty(rows), rounds)
    assert not plain.faults.any(), sampling
    tokens.append(plain.walk.tokens)
    sparse = propose_rejection(logits[:rows], table, wide, positions, rounds)
    assert np.allclose(sparse.probs.sum(axis=1), 1.0, atol=1e-5), sampling
    trees = Trees(
        np.arange(rows + 1, dtype=np.int32),
        sparse.tokens,
        np.full(rows, -1, np.int32),
        q_ids=sparse.ids,
        q_probs=sparse.probs,
    )
    places = np.repeat(slots, 2), np.repeat(positions, 2) + np.tile([0, 1], rows).astype(np.int32)
    judged = verify_chains(logits, table, *places, contexts, trees, rounds)
    assert not judged.faults.any(), sampling
    choosing = Choosing(table, wide, positions.astype(np.int64))
    tokens += [sparse.tokens, judged.walk.tokens, choosing.best(logits.numpy()[:rows], 0)[0]]
    best, scores = choosing.top(logits.numpy()[:rows], 1, 3, 1)
    assert not np.isnan(scores).any(), sampling
    for found in (*tokens, best.reshape(-1)):
        assert ((found >= 0) & (found < VOCAB)).all(), sampling


@settings(max_examples=200, deadline=None)
@given(VALUES, LOGITS, st.integers(0, 1 << 20))
def test_whatever_comes_is_refused_or_draws(values: dict[str, Any], kind: str, seed: int) -> None:
    refused = False
    try:
        sampling = parse(max_tokens=16, **values).sampling
    except BadField:
        refused = True
    if refused:
        assert any(not field_holds(name, value) for name, value in values.items() if INPUT_BY_NAME[name] in REALS)
    else:
        assert_everything_draws(sampling, kind, seed)


SHAPES = st.sampled_from([(1,), (0,), (2,), (1, 1), (3, 2), (1, 0), ()])
INTERESTING = (b"", b"a", b"auto", b"fixed:3", b"coupled", b"chat", b"\xff", b"\xed\xa0\x80", b"\x00", b" " * 5000)


def tensor(field: Field) -> st.SearchStrategy[Any]:
    if field.dtype == "BYTES":
        elements = st.sampled_from(INTERESTING) | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
        return SHAPES.flatmap(lambda shape: arrays.arrays(np.object_, shape, elements=elements))
    return SHAPES.flatmap(lambda shape: arrays.arrays(NUMBERS[field.dtype], shape))


NAMES = st.sets(st.sampled_from([field.name for field in INPUTS]), max_size=8)
PARAMETERS = st.dictionaries(
    st.sampled_from(["triton_x", "x", "seed", "\ud800"]) | st.text(max_size=5), st.none() | st.integers() | st.text()
)
REQUESTS = NAMES.flatmap(lambda names: st.fixed_dictionaries({name: tensor(INPUT_BY_NAME[name]) for name in names}))
PARSER = parser(tokenizer=TOKENIZER, drafters=["draft_a"])


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(REQUESTS, st.sampled_from(["text_input", "input_ids", ""]), st.one_of(st.just({}), PARAMETERS))
def test_any_tensors_are_a_request_or_a_named_error(
    tensors: dict[str, Any], prompt: str, parameters: dict[str, Any]
) -> None:
    """Tensors come as Triton hands them over: any shape, bytes of any kind, numbers of any bits."""
    good = {"text_input": text("Once"), **ids(5, 6)}
    if prompt:
        tensors = {name: value for name, value in tensors.items() if name not in good} | {prompt: good[prompt]}
    refused: BadField | None = None
    try:
        fields.tenant_of(tensors.get)
        PARSER.prompt_bytes(tensors.get)
        found = PARSER.parse(1, 0.0, tensors.get, parameters)
    except BadField as error:
        refused = error
    if refused is None:
        assert isinstance(found.request, Request)
        scored = tensors.get("return_prompt_log_probs")
        least = 0 if scored is not None and scored.any() else 1  # its prompt's probabilities may be all it asks for
        assert found.request.max_tokens >= least
        assert len(found.request.prompt)
        return
    assert refused.field in INPUT_BY_NAME or refused.field in parameters
    assert re.match(r"(?s).*: got .*, allowed: .+", str(refused))
    assert len(str(refused)) < 600, "what was sent is not sent back whole"

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from covey.contracts.errors import PortError
from covey.contracts.types import (
    NO_INTS,
    DrafterInfo,
    DraftReply,
    DraftWork,
    Open,
    Resized,
    ResizeStatus,
    Rule,
    Sampling,
    Scores,
    TargetInfo,
    TargetReply,
    TargetWork,
    Top,
    Trees,
)
from covey.wire import codec
from covey.wire.checks import check_target_work
from covey_client.wire import INPUTS, SAMPLING, Field
from tests.arrays import ints


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    for field in dataclasses.fields(one):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if dataclasses.is_dataclass(left):
            assert_same(left, right)
        elif isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, field.name
            assert left.shape == right.shape, field.name
            np.testing.assert_array_equal(left, right)
        elif field.name == "opens":
            assert len(left) == len(right)
            for item, again in zip(left, right):
                assert_same(item, again)
        else:
            assert left == right, field.name


OPENS = (
    Open(
        *(7, ints(1, 2, 3), 2),
        Sampling(
            0.7,
            40,
            0.9,
            seed=(1 << 64) - 1,
            bad_words=((1, 2), (3,)),
            end_ids=(0,),
            logit_bias=((5, -99.5),),
            grammar="g",
        ),
        "Jörg",
    ),
    Open(9, ints(4), 1, Sampling(rule=Rule.REJECTION, logprobs=True), rounds=5),
)
TREES = Trees(
    ints(0, 2, 2, 3),
    ints(5, 6, 7),
    ints(-1, 0, -1),
    np.array([-0.5, -1.0, 0.0], np.float32),
    np.arange(6, dtype=np.int32).reshape(3, 2),
    np.full((3, 2), 0.5, np.float32),
)


def test_a_wish_for_another_pool_survives() -> None:
    assert codec.decode_resize(codec.encode_resize(1 << 40)) == 1 << 40
    with pytest.raises(PortError, match="pool of 0 blocks"):
        codec.decode_resize(codec.encode_resize(0))


def test_foreign_messages_are_refused() -> None:
    message = codec.pack(codec.INFO_REQUEST)
    with pytest.raises(PortError, match="kind 1"):
        codec.decode_target_work(message)
    message = message.copy()
    message[0] = 99
    with pytest.raises(PortError, match="version 99"):
        codec.kind_of(message)
    with pytest.raises(PortError, match="version none"):
        codec.kind_of(ints())


WORK = TargetWork(
    *(ints(1, 2, 3), ints(10, 11, 12), ints(1, 1, 5), TREES, OPENS, (4, 5), 1 << 40, 77, ints(8, 1, 0), 1 << 62, True)
)
DRAFT = DraftWork(
    *(ints(1, 2), ints(5, 6), ints(0, 1, 3), ints(1, 2, 3), ints(4, 2), ints(1, 3), ints(0, 9), True, OPENS, (8,)),
    *(3, 4, (1 << 63) - 1),
    log_q=True,
    patience=0.5,
    vocab_size=4096,
)
REPLY = TargetReply(
    *(ints(0, 1), ints(3, 0), ints(0, 3), ints(1, 0), ints(0, 2, 2), ints(8, 9), np.float32([-0.25, np.nan])),
    *(5, 10, 1 << 31, 0.00123, np.float32([0.5, -1.0])),
    Top(ints(5, 6, 8, -1).reshape(2, 2), np.float32([[-0.1, -3.0], [-0.5, 0.0]])),
)
REPLY = dataclasses.replace(
    REPLY,
    scored=ints(0, 0, 2),
    scores=Scores(np.float32([-1, -2]), Top(ints(5, 6).reshape(2, 1), np.zeros((2, 1), np.float32))),
)
DRAFTED = DraftReply(ints(0, 2, 0), ints(4, 0, 6), TREES, 3, 0.5, 0.25)
TARGET = TargetInfo("target", 4096, 2048, 16, 100, (0, 2), "invariant", "bfloat16", "cpu", 5, "/somewhere")
DRAFTER = DrafterInfo("draft", 0, 2048, 5, 0)
RESIZED = Resized(ResizeStatus.NOT_HERE, 100)
GREEDY = Open(7, ints(1, 2, 3), 2, Sampling())


def opened(**changed: Any) -> dict[str, Any]:
    return {"opens": (dataclasses.replace(GREEDY, **changed),)}


def sampled(**changed: Any) -> dict[str, Any]:
    return opened(sampling=dataclasses.replace(GREEDY.sampling, **changed))


def tree(**changed: Any) -> dict[str, Any]:
    return {"trees": dataclasses.replace(TREES, **changed)}


@pytest.mark.parametrize("field", [each for each in INPUTS if each.part == SAMPLING and each.dtype == "FP32"])
def test_what_a_request_may_say_is_no_damage(field: Field) -> None:
    """A bound comes out of a tensor of 32 bits."""
    for bound in (field.low, field.high):
        value = float(np.float32(bound)) if not field.above or bound != field.low else 1e-30
        check_target_work(dataclasses.replace(WORK, **sampled(**{field.attribute: value})))


OPENINGS: list[dict[str, Any]] = [
    opened(tokens=ints(-1)),
    opened(tokens=ints()),
    opened(num_prompt=4),
    opened(num_prompt=-1),
    opened(num_prompt=1.5),
    opened(rounds=-1),
    opened(tag=1 << 31),
    opened(tenant=5),
    {"opens": (GREEDY, GREEDY)},
    sampled(temperature=-1.0),
    sampled(temperature=float("nan")),
    sampled(temperature=float("inf")),
    sampled(top_k=-1),
    sampled(top_p=1.5),
    sampled(repetition_penalty=0.0),
    sampled(presence_penalty="much"),
    sampled(seed=1 << 64),
    sampled(end_ids=(-1,)),
    sampled(bad_words=(("word",),)),
    sampled(logit_bias=((5, 100.5),)),
    sampled(logit_bias=((5, float("nan")),)),
    sampled(logit_bias=((-5, 1.0),)),
    sampled(logit_bias=((5, 1.0), (5, 2.0))),
    sampled(logit_bias=((5,),)),
    sampled(logit_bias=5),
    sampled(top_logprobs=21),
    sampled(grammar=5),
]
PLANTED = [
    tree(offsets=ints(0, 2, 2, 4)),
    tree(offsets=ints(0, 2, 1, 3)),
    tree(offsets=ints(0, 3)),
    tree(parents=ints(-1, 1, -1)),
    tree(parents=ints(-1, -2, -1)),
    tree(parents=ints(-1, 0, 0)),
    tree(parents=ints(-1)),
    tree(tokens=ints(5, -6, 7)),
    tree(scores=np.zeros(2, np.float32)),
    tree(q_probs=np.zeros((3, 1), np.float32)),
    tree(q_ids=ints(1), q_probs=np.zeros(1, np.float32)),
]
HEADS: list[dict[str, Any]] = [{"sequence": -1}, {"origin": -1}, {"epoch": -1}, {"tags": ints(1, 1, 1)}]
DAMAGED: list[tuple[Any, list[dict[str, Any]]]] = [
    (WORK, [*OPENINGS, *PLANTED, *HEADS]),
    (WORK, [{"base": ints(1, 2)}, {"base": ints(1, 0, 3)}, {"chunk": ints(1, -1, 1)}, {"room": ints(1)}]),
    (DRAFT, [*OPENINGS, *HEADS[:3], {"tags": ints(1, 1)}, {"keep": ints(-1, 1)}, {"offsets": ints(0, 1, 4)}]),
    (DRAFT, [{"tokens": ints(1, -2, 3)}, {"depth": ints(1 << 30, 1)}, {"depth": ints(1, -1)}, {"width": ints(0, 1)}]),
    (DRAFT, [{"width": ints(1 << 30, 1)}, {"rounds": ints(1, -1)}, {"offsets": ints(1, 1, 3)}]),
    (REPLY, [{"status": ints(0, 9)}, {"status": ints(0)}, {"accepted": ints(3, 0)}, {"accepted": ints(-1, 0)}]),
    (REPLY, [{"offsets": ints(0, 2, 1)}, {"tokens": ints(8, -9)}, {"logprobs": np.zeros(1, np.float32)}]),
    (REPLY, [{"top": Top(ints(1, 2, 3), np.zeros(3, np.float32))}, {"top": Top(ints(1, 2), np.zeros(4, np.float32))}]),
    (REPLY, [{"top": Top(ints(-2, 2), np.zeros(2, np.float32))}]),
    (REPLY, [{"scored": ints(0, 1, 3)}, {"scored": ints(0, 2)}, {"scored": NO_INTS}]),
    (REPLY, [{"scores": Scores(np.zeros(2, np.float32), Top(ints(-2, 1), np.zeros(2, np.float32)))}]),
    (REPLY, [{"free_blocks": 11}, {"free_blocks": -1}, {"seconds": float("nan")}, {"seconds": -1.0}, {"epoch": -1}]),
    (REPLY, [{"divergence": np.float32(each)} for each in ([0.5], [0.5, 1.5], [np.nan, 0], [0, -0.5])]),
    (DRAFTED, [*PLANTED, {"status": ints(0, -1, 0)}, {"seen": ints(1, 2)}, {"draft_seconds": float("inf")}]),
    (TARGET, [{"vocab_size": -1}, {"block_size": 0}, {"total_blocks": "many"}, {"max_positions": 0}]),
    (DRAFTER, [{"resident_bytes": -1}, {"epoch": None}]),
    (RESIZED, [{"status": 5}, {"status": -1}, {"total_blocks": 0}]),
]
DECODE: dict[type, Any] = {
    TargetWork: codec.decode_target_work,
    DraftWork: codec.decode_draft_work,
    TargetReply: codec.decode_target_reply,
    DraftReply: codec.decode_draft_reply,
    TargetInfo: codec.decode_target_info,
    DrafterInfo: codec.decode_drafter_info,
    Resized: codec.decode_resized,
}


@pytest.mark.parametrize(("whole", "changes"), DAMAGED)
def test_values_that_do_not_fit_are_refused_where_they_are_decoded(whole: Any, changes: list[dict[str, Any]]) -> None:
    decode = DECODE[type(whole)]
    for changed in changes:
        with pytest.raises(PortError, match="damaged message"):
            decode(codec.encode(dataclasses.replace(whole, **changed)))


WHOLE = [WORK, DRAFT, REPLY, DRAFTED, TARGET, DRAFTER, RESIZED]


@pytest.mark.parametrize("whole", [*WHOLE, dataclasses.replace(WORK, trees=Trees.empty(3), opens=())])
def test_what_is_sent_survives(whole: Any) -> None:
    assert_same(whole, DECODE[type(whole)](codec.encode(whole)))


@pytest.mark.parametrize("whole", WHOLE, ids=lambda each: type(each).__name__)
def test_words_that_are_cut_off_added_or_changed_are_refused_or_harmless(whole: Any) -> None:
    """Whatever arrives is read as a value whose parts fit, or refused by name."""
    decode = DECODE[type(whole)]
    message = codec.encode(whole)
    for count in range(len(message)):
        with pytest.raises(PortError):
            decode(message[:count])
    with pytest.raises(PortError):
        decode(np.concatenate([message, ints(0)]))
    for place in range(len(message)):
        for value in (-1, 1 << 30):
            changed = message.copy()
            changed[place] = value
            with suppress(PortError):
                decode(changed)


def test_an_answer_of_another_number_of_rows_is_refused() -> None:
    for whole in (REPLY, DRAFTED):
        decode = DECODE[type(whole)]
        decode(codec.encode(whole), len(whole.status))
        with pytest.raises(PortError, match="rows are answered"):
            decode(codec.encode(whole), len(whole.status) + 1)

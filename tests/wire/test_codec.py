from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from covey.errors import PortError
from covey.types import DraftReply, DraftWork, Ints, Open, Rule, Sampling, TargetInfo, TargetReply, TargetWork, Trees
from covey.wire import codec


def ints(*values: int) -> Ints:
    return np.asarray(values, np.int32)


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
        7, ints(1, 2, 3), 2, Sampling(0.7, 40, 0.9, seed=(1 << 64) - 1, bad_words=((1, 2), (3,)), end_ids=(0,)), "Jörg"
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


@pytest.mark.parametrize("trees", [TREES, Trees.empty(3)], ids=["trees", "no trees"])
@pytest.mark.parametrize("opens", [OPENS, ()], ids=["opens", "no opens"])
def test_target_work_survives(trees: Trees, opens: tuple[Open, ...]) -> None:
    rows = ints(1, 2, 3), ints(10, 11, 12), ints(1, 1, 5)
    work = TargetWork(*rows, trees, opens, (4, 5), 1 << 40, 77, ints(8, 1, 0), 1 << 62)
    assert_same(work, codec.decode_target_work(codec.encode_target_work(work)))


def test_replies_survive() -> None:
    reply = TargetReply(
        ints(0, 1),
        ints(3, 0),
        ints(0, 16),
        ints(1, 0),
        ints(0, 2, 2),
        ints(8, 9),
        np.array([-0.25, np.nan], np.float32),
        5,
        10,
        1 << 31,
        0.00123,
    )
    assert_same(reply, codec.decode_target_reply(codec.encode_target_reply(reply)))
    draft = DraftReply(ints(0, 2, 0), ints(4, 0, 6), TREES, 3, 0.5, 0.25)
    assert_same(draft, codec.decode_draft_reply(codec.encode_draft_reply(draft)))


def test_draft_work_and_info_survive() -> None:
    work = DraftWork(
        ints(1, 2),
        ints(5, 6),
        ints(0, 1, 3),
        ints(1, 2, 3),
        ints(4, 2),
        ints(1, 3),
        ints(0, 9),
        True,
        OPENS,
        (8,),
        3,
        4,
        (1 << 63) - 1,
    )
    assert_same(work, codec.decode_draft_work(codec.encode_draft_work(work)))
    info = TargetInfo("target", 4096, 2048, 16, 100, (0, 2), "invariant", "bfloat16", "cpu", 5, "/somewhere")
    assert codec.decode_target_info(codec.encode_info(info)) == info


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

"""Checks of a decoded message: each raises PortError if the message is damaged.

Lengths must fit each other, offsets must cut an array into rows, numbers must be in range, trees must be trees. Readers
then index without checking. Token ids are not compared with the vocabulary, whose size is not known here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence, Sized
from itertools import chain
from typing import Any

import numpy as np

from covey.contracts.errors import PortError
from covey.contracts.types import (
    DrafterInfo,
    DraftReply,
    DraftWork,
    Ints,
    Open,
    RowStatus,
    Sampling,
    TargetInfo,
    TargetReply,
    TargetWork,
    Trees,
)
from covey.process.log_about import safe
from covey_client.wire import INPUT_BY_NAME, INPUTS, SAMPLING

FEW = 128
MOST_DEPTH = MOST_WIDTH = 1024  # of a draft: the drafter allocates memory for both
_BIAS = INPUT_BY_NAME["logit_bias"]
_LAST_STATUS = max(RowStatus)
_LARGEST = sys.float_info.max  # as a bound, it keeps infinity out; NaN fails any comparison

# For each field of `Sampling`: the lowest and highest value. An integer as the lowest value asks for integers. Fields
# that a public request sets directly have the bounds of that request.
_SAMPLING: dict[str, tuple[float, float]] = {
    "min_tokens": (0, _LARGEST),
    "seed": (0, (1 << 64) - 1),
    **{
        field.attribute: (
            float(np.float32(field.low)) if field.dtype == "FP32" else field.low,  # as it comes out of a tensor
            min(field.high, _LARGEST),
        )
        for field in INPUTS
        if field.part == SAMPLING and field.is_number
    },
}


def must(holds: bool, what: str, *values: object) -> None:
    """Raise PortError unless `holds`. `what` is formatted only on failure, because every round makes many checks."""
    if not holds:
        raise PortError("damaged message: " + what % values)


def check_target_work(work: TargetWork) -> None:
    rows = len(work.tags)
    _head(work.sequence, work.epoch, work.origin)
    _rows(rows, base=work.base, chunk=work.chunk)
    must(len(work.room) in (0, rows), "room has %d values for %d rows", len(work.room), rows)
    _distinct(work.tags)
    _within(1, base=work.base)
    _within(0, chunk=work.chunk, room=work.room)
    must(len(work.states_from) in (0, rows), "states_from has %d values for %d rows", len(work.states_from), rows)
    must(len(work.next_depth) in (0, rows), "next_depth has %d values for %d rows", len(work.next_depth), rows)
    _within(0, MOST_DEPTH, next_depth=work.next_depth)
    _trees(work.trees, rows)
    _opens(work.opens)


def check_draft_work(work: DraftWork) -> None:
    rows = len(work.tags)
    _head(work.sequence, work.epoch, work.origin)
    _rows(rows, keep=work.keep, depth=work.depth, width=work.width, rounds=work.rounds)
    _distinct(work.tags)
    check_offsets("offsets", work.offsets, rows, len(work.tokens))
    _within(0, keep=work.keep, tokens=work.tokens, rounds=work.rounds)
    _within(0, MOST_DEPTH, depth=work.depth)
    _within(1, MOST_WIDTH, width=work.width)
    must(work.vocab_size >= 0, "vocab_size %d", work.vocab_size)
    _times(work.patience)
    _states(work, rows)
    _opens(work.opens)


def check_target_reply(reply: TargetReply, rows: int | None) -> None:
    """Raise PortError for a damaged reply. `rows` is the number of rows that were sent, or None if unknown."""
    _answers(reply.status, rows)
    _rows(len(reply.status), cached=reply.num_cached_tokens, reused=reply.reused, accepted=reply.accepted)
    check_offsets("offsets", reply.offsets, len(reply.status), len(reply.tokens))
    _rows(len(reply.tokens), logprobs=reply.logprobs)
    if reply.top.width:
        _within(-1, top_ids=reply.top.ids.reshape(-1))
    _within(0, cached=reply.num_cached_tokens, reused=reply.reused, accepted=reply.accepted, tokens=reply.tokens)
    more = reply.accepted > reply.offsets[1:] - reply.offsets[:-1]
    must(not more.any(), "more tokens accepted than emitted")
    if len(reply.scored) or len(reply.scores.logprobs):
        check_offsets("scored", reply.scored, len(reply.status), len(reply.scores.logprobs))
        _within(-1, scores_top_ids=reply.scores.top.ids.reshape(-1))
    if len(reply.divergence):
        _rows(len(reply.status), divergence=reply.divergence)
        shares = (reply.divergence >= 0) & (reply.divergence <= 1) | (reply.divergence == -1)
        must(bool(shares.all()), "divergence %s: each must be a share, or -1", reply.divergence)
    _states(reply, len(reply.status))
    if len(reply.draft_offsets) or len(reply.draft_tokens):
        check_offsets("draft_offsets", reply.draft_offsets, len(reply.status), len(reply.draft_tokens))
        _within(0, draft_tokens=reply.draft_tokens)
    free, total = reply.free_blocks, reply.total_blocks
    must(0 <= free <= total, "%d of %d blocks are free", free, total)
    must(reply.epoch >= 0, "epoch %d", reply.epoch)
    _times(reply.seconds, reply.draft_seconds, reply.catch_up_seconds)


def _states(message: TargetReply | DraftWork, rows: int) -> None:
    if len(message.state_offsets):
        check_offsets("state_offsets", message.state_offsets, rows, len(message.states))


def check_draft_reply(reply: DraftReply, rows: int | None) -> None:
    _answers(reply.status, rows)
    _rows(len(reply.status), seen=reply.seen)
    _within(0, seen=reply.seen)
    _trees(reply.trees, len(reply.status))
    must(reply.epoch >= 0, "epoch %d", reply.epoch)
    _times(reply.catch_up_seconds, reply.draft_seconds, reply.wait_seconds)


def check_info(info: TargetInfo | DrafterInfo) -> None:
    _numbers({name: getattr(info, name) for name in ("vocab_size", "epoch")}, 0)
    _numbers({"max_positions": info.max_positions}, 1)
    _numbers({"state_width": info.state_width}, 0)
    if isinstance(info, TargetInfo):
        _numbers({"block_size": info.block_size, "total_blocks": info.total_blocks}, 1)
        _numbers({"block_bytes": info.block_bytes, "least_blocks": info.least_blocks}, 0)
    else:
        _numbers({"resident_bytes": info.resident_bytes}, 0)
        _numbers({"wait_seconds": info.wait_seconds, "step_seconds": info.step_seconds}, 0.0)


def _head(sequence: int, epoch: int, origin: int) -> None:
    holds = sequence >= 0 and epoch >= 0 and origin >= 0
    must(holds, "sequence %d, epoch %d, origin %d: none may be negative", sequence, epoch, origin)


def _answers(status: Ints, rows: int | None) -> None:
    must(rows is None or len(status) == rows, "%d rows are answered, %s were sent", len(status), rows)
    _within(0, _LAST_STATUS, status=status)


def _times(*seconds: float) -> None:
    for each in seconds:
        must(0 <= each <= _LARGEST, "it took %g seconds", each)


def _rows(count: int, **arrays: Sized) -> None:
    for name, values in arrays.items():
        must(len(values) == count, "%s has %d values, expected %d", name, len(values), count)


def _within(low: int, high: int | None = None, **arrays: Ints) -> None:
    for name, values in arrays.items():
        if len(values):
            least, most = _ends(values)
            must(least >= low, "%s has %d, the lowest allowed is %d", name, least, low)
            must(high is None or most <= high, "%s has %d, the highest allowed is %s", name, most, high)


def _ends(values: Ints) -> tuple[int, int]:
    """Return the lowest and highest value. For few values, a list is faster than an array."""
    if len(values) > FEW:
        return int(values.min()), int(values.max())
    listed = values.tolist()
    return min(listed), max(listed)


def _numbers(values: dict[str, Any], low: float, high: float = _LARGEST) -> None:
    """Check that values are in range, and integers if `low` is one."""
    kind = int if isinstance(low, int) else (int, float)
    for name, value in values.items():
        fits = isinstance(value, kind) and low <= value <= high
        must(fits, "%s is %r, expected a number from %g to %g", name, value, low, high)


def _token_ids(name: str, tokens: Sequence[Any]) -> None:
    """Check a list of token ids in one go: there may be thousands, and each process that opens a request checks
    them."""
    must(not tokens or (set(map(type, tokens)) == {int} and min(tokens) >= 0), "%s: not all are token ids", name)


def _distinct(tags: Ints) -> None:
    must(len(set(tags.tolist())) == len(tags), "two rows have the same tag")


def check_offsets(name: str, offsets: Ints, rows: int, total: int) -> None:
    bounds = offsets.tolist()
    must(len(bounds) == rows + 1, "%s has %d values for %d rows", name, len(bounds), rows)
    must(bounds[0] == 0 and bounds[-1] == total, "%s run from %d to %d of %d", name, bounds[0], bounds[-1], total)
    must(bounds == sorted(bounds), "%s decrease", name)


def _trees(trees: Trees, rows: int) -> None:
    nodes = len(trees.tokens)
    check_offsets("tree_offsets", trees.offsets, rows, nodes)
    _rows(nodes, tree_parents=trees.parents)
    for name, values in (("tree_scores", trees.scores), ("tree_log_q", trees.log_q)):
        must(len(values) in (0, nodes), "%s has %d values for %d nodes", name, len(values), nodes)
    if nodes:
        _within(0, tree_tokens=trees.tokens)
        _within(-1, tree_parents=trees.parents)
        first = np.repeat(trees.offsets[:-1], trees.sizes)
        late = np.count_nonzero(trees.parents + first >= np.arange(nodes))
        must(not late, "%d parents come after their children, or belong to another row", late)


def _opens(opens: tuple[Open, ...]) -> None:
    for opening in opens:
        _numbers({"tag": opening.tag}, -(1 << 31), (1 << 31) - 1)
        must(len(opening.tokens) > 0, "tag %d is opened without tokens", opening.tag)
        _within(0, open_tokens=opening.tokens)
        _numbers({"num_prompt": opening.num_prompt}, 0, len(opening.tokens))
        _numbers({"rounds": opening.rounds}, 0)
        must(isinstance(opening.tenant, str), "tenant is %r, expected a text", opening.tenant)
        must(opening.name == safe(opening.name), "%r is not allowed as a request's name", opening.name)
        _sampling(opening.sampling)
    must(len({opening.tag for opening in opens}) == len(opens), "a tag is opened twice")


def _sampling(sampling: Sampling) -> None:
    for name, (low, high) in _SAMPLING.items():
        _numbers({name: getattr(sampling, name)}, low, high)
    _token_ids("end_ids or bad_words", [*sampling.end_ids, *chain.from_iterable(sampling.bad_words)])
    _token_ids("logit_bias", [token for token, _ in sampling.logit_bias])
    for _, value in sampling.logit_bias:
        fits = isinstance(value, (int, float)) and _BIAS.low <= value <= _BIAS.high
        must(fits, "logit_bias is %r, expected a number from %g to %g", value, _BIAS.low, _BIAS.high)
    must(isinstance(sampling.grammar, str), "grammar is %r, expected a text", sampling.grammar)
    must(len(dict(sampling.logit_bias)) == len(sampling.logit_bias), "logit_bias has a token twice")

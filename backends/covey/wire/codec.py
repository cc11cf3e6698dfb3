"""Messages between the orchestrator and the models behind it.

A message is one INT32 tensor: [version, kind, the server's token in two words, number of fields, each field's length
in words] and then the fields. Anyone who reaches the public port can send one: those without the token are refused.
Wider values are viewed as words; text travels as JSON bytes. One tensor each way keeps a BLS call near its floor.
The layouts below are the one table of what a message holds; what is decoded is checked (`checks.py`).
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as fields_of
from typing import Any

import numpy as np

from covey.errors import PortError
from covey.types import (
    NO_TOP,
    DrafterInfo,
    DraftReply,
    DraftWork,
    Floats,
    Ints,
    Judged,
    Open,
    Reading,
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
from covey.wire.checks import (
    check_draft_reply,
    check_draft_work,
    check_info,
    check_offsets,
    check_target_reply,
    check_target_work,
    must,
)
from covey.wire.token import same

VERSION = 14
REQUEST_TENSOR = "message"
REPLY_TENSOR = "reply"


@dataclass(frozen=True, slots=True)
class Layout:
    """A message's kind and its fields in order: name to numpy type."""

    kind: int
    fields: dict[str, str]


_TREES = {
    "tree_offsets": "i4",
    "tree_tokens": "i4",
    "tree_parents": "i4",
    "tree_scores": "f4",
    "q_ids": "i4",
    "q_probs": "f4",
}
_OPENS = {"open_settings": "u1", "open_offsets": "i4", "open_tokens": "i4", "frees": "i4"}

INFO_REQUEST = Layout(1, {})
INFO_REPLY = Layout(2, {"info": "u1"})
TARGET_WORK = Layout(3, {"head": "i8", "tags": "i4", "base": "i4", "chunk": "i4", "room": "i4", **_TREES, **_OPENS})
TARGET_REPLY = Layout(
    4,
    {
        "head": "i8",
        "seconds": "f8",
        "status": "i4",
        "cached": "i4",
        "reused": "i4",
        "accepted": "i4",
        "offsets": "i4",
        "tokens": "i4",
        "logprobs": "f4",
        "divergence": "f4",
        "chances": "f4",
        "top_ids": "i4",
        "top_logprobs": "f4",
        "scored": "i4",
        "scores": "f4",
        "scores_top_ids": "i4",
        "scores_top_logprobs": "f4",
    },
)
DRAFT_WORK = Layout(
    5,
    {
        "head": "i8",
        "seconds": "f8",
        "tags": "i4",
        "keep": "i4",
        "offsets": "i4",
        "tokens": "i4",
        "depth": "i4",
        "width": "i4",
        "rounds": "i4",
        "judge": "i4",
        "judge_chances": "f4",
        **_OPENS,
    },
)
_JUDGED = {
    "read": "i4",
    "first": "i4",
    "hit_offsets": "i4",
    "hits": "i4",
    "prompt_log_q": "f4",
    "prompt_tokens": "i4",
}
DRAFT_REPLY = Layout(
    6, {"head": "i8", "seconds": "f8", "status": "i4", "seen": "i4", **_TREES, "tree_log_q": "f4", **_JUDGED}
)

RESIZE = Layout(7, {"blocks": "i8"})
RESIZED = Layout(8, {"head": "i8"})

_SETTINGS = tuple(field.name for field in fields_of(Sampling))
_TYPES = {name: np.dtype(name) for name in ("i4", "f4", "i8", "f8")}
_NOTHING = {name: np.zeros(0, dtype) for name, dtype in _TYPES.items()}
_TOKEN, _COUNT, _HEAD = 2, 4, 5  # words before the token, the number of fields, and the fields' lengths


def pack(layout: Layout, **values: Any) -> Ints:
    """The message's words, its token 0. Every field of the layout must be given; None is an empty field."""
    parts, sizes = [b""], []
    for name, kind in layout.fields.items():
        value = values.pop(name)
        if value is None:
            data = b""
        elif kind == "u1":
            data = json.dumps(value, separators=(",", ":")).encode()
            data += b" " * (-len(data) % 4)
        else:
            data = np.asarray(value, _TYPES[kind]).tobytes()
        sizes.append(len(data) // 4)
        parts.append(data)
    assert not values, f"not in the layout: {sorted(values)}"
    parts[0] = struct.pack(f"={_HEAD + len(sizes)}i", VERSION, layout.kind, 0, 0, len(sizes), *sizes)
    return np.frombuffer(bytearray().join(parts), np.int32)


def seal(message: Ints, token: int) -> None:
    """Put the server's token into a message that `pack` made."""
    message[_TOKEN:_COUNT].view(np.int64)[0] = token


def authenticate(message: Ints, token: int) -> None:
    """Raises PortError for a message that no model of this server sent."""
    if not same(token_of(message), token):
        raise PortError("the message is not of this server's own models")


def token_of(message: Ints) -> int:
    """The token that the message was sealed with; raises PortError for a message of another version."""
    kind_of(message)
    return int(message[_TOKEN:_COUNT].view(np.int64)[0])


def kind_of(message: Ints) -> int:
    """The message's kind; raises PortError for a message of another version."""
    version, kind = message[:2].tolist() if len(message) >= _HEAD else ("none", 0)
    if version != VERSION:
        raise PortError(f"message of version {version}, this side speaks {VERSION}")
    return int(kind)


def unpack(layout: Layout, message: Ints) -> dict[str, Any]:
    """The fields by name, as views of one copy of the message; JSON fields as values, None where empty."""
    count = len(layout.fields)
    if kind_of(message) != layout.kind or message[_COUNT] != count:
        raise PortError(f"message of kind {message[1]} with {message[_COUNT]} fields where kind {layout.kind} is due")
    sizes = message[_HEAD : _HEAD + count].tolist()
    whole = len(sizes) == count and min(sizes, default=0) >= 0 and _HEAD + count + sum(sizes) == len(message)
    must(whole, "its %d words are not those of its fields, %s", len(message), sizes)
    raw = message.tobytes()
    at = 4 * (_HEAD + count)
    fields: dict[str, Any] = {}
    for (name, kind), size in zip(layout.fields.items(), sizes, strict=True):
        if kind == "u1":
            fields[name] = _json(raw[at : at + 4 * size]) if size else None
        elif size:
            must(4 * size % _TYPES[kind].itemsize == 0, "%s has half a number", name)
            fields[name] = np.frombuffer(raw, _TYPES[kind], 4 * size // _TYPES[kind].itemsize, at)
        else:
            fields[name] = _NOTHING[kind]
        at += 4 * size
    return fields


def encode_target_work(work: TargetWork) -> Ints:
    return pack(
        TARGET_WORK,
        head=[work.sequence, work.epoch, work.origin, int(work.divergence)],
        tags=work.tags,
        base=work.base,
        chunk=work.chunk,
        room=work.room,
        **_trees_out(work.trees),
        **_opens_out(work.opens, work.frees),
    )


def decode_target_work(message: Ints) -> TargetWork:
    fields = unpack(TARGET_WORK, message)
    sequence, epoch, origin, divergence = _numbers(fields["head"], 4)
    opens, frees = _opens_in(fields)
    work = TargetWork(
        fields["tags"],
        fields["base"],
        fields["chunk"],
        _trees_in(fields),
        opens,
        frees,
        sequence,
        epoch,
        fields["room"],
        origin,
        bool(divergence),
    )
    check_target_work(work)
    return work


def encode_target_reply(reply: TargetReply) -> Ints:
    return pack(
        TARGET_REPLY,
        head=[reply.free_blocks, reply.total_blocks, reply.epoch],
        seconds=[reply.seconds],
        status=reply.status,
        cached=reply.num_cached_tokens,
        reused=reply.reused,
        accepted=reply.accepted,
        offsets=reply.offsets,
        tokens=reply.tokens,
        logprobs=reply.logprobs,
        divergence=reply.divergence,
        chances=reply.chances,
        top_ids=reply.top.ids,
        top_logprobs=reply.top.logprobs,
        scored=reply.scored,
        scores=reply.scores.logprobs,
        scores_top_ids=reply.scores.top.ids,
        scores_top_logprobs=reply.scores.top.logprobs,
    )


def decode_target_reply(message: Ints, rows: int | None = None) -> TargetReply:
    """The answer to a message of so many `rows`, where that is known."""
    fields = unpack(TARGET_REPLY, message)
    free_blocks, total_blocks, epoch = _numbers(fields.pop("head"), 3)
    (seconds,) = _numbers(fields.pop("seconds"), 1)
    top = _top_in(fields.pop("top_ids"), fields.pop("top_logprobs"), len(fields["tokens"]))
    scores = fields.pop("scores")
    of_prompt = _top_in(fields.pop("scores_top_ids"), fields.pop("scores_top_logprobs"), len(scores))
    reply = TargetReply(
        num_cached_tokens=fields.pop("cached"),
        free_blocks=free_blocks,
        total_blocks=total_blocks,
        epoch=epoch,
        seconds=seconds,
        top=top,
        scores=Scores(scores, of_prompt),
        **fields,
    )
    check_target_reply(reply, rows)
    return reply


def _top_in(ids: Ints, logprobs: Floats, tokens: int) -> Top:
    if not len(ids) and not len(logprobs):
        return NO_TOP
    whole = len(ids) == len(logprobs) and tokens > 0 and len(ids) % tokens == 0
    must(whole, "%d top_ids and %d top_logprobs of %d tokens", len(ids), len(logprobs), tokens)
    return Top(ids.reshape(tokens, -1), logprobs.reshape(tokens, -1))


def encode_resize(blocks: int) -> Ints:
    return pack(RESIZE, blocks=[blocks])


def decode_resize(message: Ints) -> int:
    (blocks,) = _numbers(unpack(RESIZE, message)["blocks"], 1)
    must(blocks >= 1, "a pool of %d blocks", blocks)
    return int(blocks)


def encode_resized(answer: Resized) -> Ints:
    return pack(RESIZED, head=[answer.status, answer.total_blocks])


def decode_resized(message: Ints) -> Resized:
    status, total_blocks = _numbers(unpack(RESIZED, message)["head"], 2)
    must(status in tuple(ResizeStatus) and total_blocks >= 1, "status %d of a pool of %d blocks", status, total_blocks)
    return Resized(ResizeStatus(status), total_blocks)


def encode_draft_work(work: DraftWork) -> Ints:
    return pack(
        DRAFT_WORK,
        head=[
            work.sequence,
            work.epoch,
            work.origin,
            int(work.q_rows),
            int(work.log_q),
            work.reading.budget if work.reading else -1,
        ],
        seconds=[work.patience, work.plain, work.needed],
        tags=work.tags,
        keep=work.keep,
        offsets=work.offsets,
        tokens=work.tokens,
        depth=work.depth,
        width=work.width,
        rounds=work.rounds,
        judge=work.reading and work.reading.judge,
        judge_chances=work.reading and work.reading.chances,
        **_opens_out(work.opens, work.frees),
    )


def decode_draft_work(message: Ints) -> DraftWork:
    fields = unpack(DRAFT_WORK, message)
    sequence, epoch, origin, q_rows, log_q, budget = _numbers(fields.pop("head"), 6)
    patience, plain, needed = _numbers(fields.pop("seconds"), 3)
    judge, chances = fields.pop("judge"), fields.pop("judge_chances")
    if len(chances):
        must(len(judge) > 0 and len(chances) % len(judge) == 0, "%d chances of %d rows", len(chances), len(judge))
        chances = chances.reshape(len(judge), -1)
    opens, frees = _opens_in(fields)
    for name in _OPENS:
        del fields[name]
    work = DraftWork(
        **fields,
        q_rows=bool(q_rows),
        log_q=bool(log_q),
        opens=opens,
        frees=frees,
        sequence=sequence,
        epoch=epoch,
        origin=origin,
        reading=Reading(judge, budget, chances) if budget >= 0 else None,
        patience=patience,
        plain=plain,
        needed=needed,
    )
    check_draft_work(work)
    return work


def encode_draft_reply(reply: DraftReply) -> Ints:
    judged = reply.judged
    return pack(
        DRAFT_REPLY,
        head=[reply.epoch],
        seconds=[reply.catch_up_seconds, reply.draft_seconds, reply.wait_seconds, reply.again_seconds],
        status=reply.status,
        seen=reply.seen,
        **_trees_out(reply.trees),
        tree_log_q=reply.trees.log_q,
        read=judged and judged.read,
        first=judged and judged.first,
        hit_offsets=judged and judged.offsets,
        hits=judged and judged.hits,
        prompt_log_q=judged and judged.prompt_log_q,
        prompt_tokens=judged and judged.prompt_tokens,
    )


def decode_draft_reply(message: Ints, rows: int | None = None) -> DraftReply:
    """The answer to a message of so many `rows`, where that is known."""
    fields = unpack(DRAFT_REPLY, message)
    catch_up, draft, wait, again = _numbers(fields["seconds"], 4)
    (epoch,) = _numbers(fields["head"], 1)
    judged = None
    if len(fields["hit_offsets"]):
        judged = Judged(
            fields["read"],
            fields["first"],
            fields["hit_offsets"],
            fields["hits"],
            fields["prompt_log_q"],
            fields["prompt_tokens"],
        )
    trees = replace(_trees_in(fields), log_q=fields["tree_log_q"])
    reply = DraftReply(fields["status"], fields["seen"], trees, epoch, catch_up, draft, judged, wait, again)
    check_draft_reply(reply, rows)
    return reply


def encode_info(info: TargetInfo | DrafterInfo) -> Ints:
    return pack(INFO_REPLY, info=asdict(info))


def decode_target_info(message: Ints) -> TargetInfo:
    try:
        fields = unpack(INFO_REPLY, message)["info"]
        info = TargetInfo(**{**fields, "end_ids": tuple(fields["end_ids"])})
    except (TypeError, KeyError) as error:
        raise PortError(f"damaged message: facts of a target: {error}") from None
    check_info(info)
    return info


def decode_drafter_info(message: Ints) -> DrafterInfo:
    try:
        info = DrafterInfo(**unpack(INFO_REPLY, message)["info"])
    except TypeError as error:
        raise PortError(f"damaged message: facts of a drafter: {error}") from None
    check_info(info)
    return info


def _trees_out(trees: Trees) -> dict[str, Ints | Floats | None]:
    return {
        "tree_offsets": trees.offsets,
        "tree_tokens": trees.tokens,
        "tree_parents": trees.parents,
        "tree_scores": trees.scores,
        "q_ids": trees.q_ids,
        "q_probs": trees.q_probs,
    }


def _trees_in(fields: dict[str, Any]) -> Trees:
    tokens = fields["tree_tokens"]
    q_ids, q_probs = fields["q_ids"], fields["q_probs"]
    whole = len(q_ids) == len(q_probs) and len(q_ids) % max(1, len(tokens)) == 0
    must(whole, "%d q_ids and %d q_probs for %d nodes", len(q_ids), len(q_probs), len(tokens))
    if len(tokens) and len(q_ids):
        q_ids, q_probs = q_ids.reshape(len(tokens), -1), q_probs.reshape(len(tokens), -1)
    else:
        q_ids = q_probs = None
    return Trees(fields["tree_offsets"], tokens, fields["tree_parents"], fields["tree_scores"], q_ids, q_probs)


def _opens_out(opens: tuple[Open, ...], frees: tuple[int, ...]) -> dict[str, Any]:
    if not opens:
        return {"open_settings": None, "open_offsets": None, "open_tokens": None, "frees": np.asarray(frees, np.int32)}
    settings = [
        {
            "tag": item.tag,
            "num_prompt": item.num_prompt,
            "tenant": item.tenant,
            "rounds": item.rounds,
            "name": item.name,
            "sampling": {name: getattr(item.sampling, name) for name in _SETTINGS},  # `asdict` would copy each token
        }
        for item in opens
    ]
    lengths = [len(item.tokens) for item in opens]
    return {
        "open_settings": settings,
        "open_offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        "open_tokens": np.concatenate([item.tokens for item in opens]),
        "frees": np.asarray(frees, np.int32),
    }


def _opens_in(fields: dict[str, Any]) -> tuple[tuple[Open, ...], tuple[int, ...]]:
    frees, settings = tuple(fields["frees"].tolist()), fields["open_settings"]
    if not settings:
        return (), frees
    offsets, tokens = fields["open_offsets"], fields["open_tokens"]
    must(isinstance(settings, list), "open_settings are no list")
    check_offsets("open_offsets", offsets, len(settings), len(tokens))
    try:
        return tuple(
            _open_in(item, np.array(tokens[offsets[index] : offsets[index + 1]], np.int32))
            for index, item in enumerate(settings)
        ), frees
    except (TypeError, KeyError, ValueError) as error:
        raise PortError(f"damaged message: settings of a tag: {type(error).__name__}: {error}") from None


def _open_in(item: Any, tokens: Ints) -> Open:
    sampling = item["sampling"]
    sampling["end_ids"] = tuple(sampling["end_ids"])
    sampling["bad_words"] = tuple(tuple(word) for word in sampling["bad_words"])
    sampling["logit_bias"] = tuple((token, value) for token, value in sampling["logit_bias"])
    sampling["rule"] = Rule(sampling["rule"])
    return Open(
        item["tag"], tokens, item["num_prompt"], Sampling(**sampling), item["tenant"], item["rounds"], item["name"]
    )


def _numbers(field: Any, count: int) -> list[Any]:
    must(len(field) == count, "%d numbers where %d are due", len(field), count)
    numbers: list[Any] = field.tolist()
    return numbers


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise PortError(f"damaged message: {error}") from None

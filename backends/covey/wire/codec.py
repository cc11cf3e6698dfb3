"""Messages between the orchestrator and its target and drafters.

A message is one INT32 tensor: [version, kind, the server's token in two words, number of fields, each field's length
in words] and then the fields. Anyone who reaches the public port can send one; a message without the token is refused.
Wider numbers are viewed as words; text travels as JSON bytes. One tensor each way keeps a BLS call near its least time.
The layouts below are the only table of a message's contents. Decoders check the contents (`checks.py`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from dataclasses import fields as fields_of
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np

from covey.contracts.errors import PortError
from covey.contracts.types import (
    NO_STATES,
    NO_TOP,
    DrafterInfo,
    DraftReply,
    DraftWork,
    Ints,
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

VERSION = 22
REQUEST_TENSOR = "message"
REPLY_TENSOR = "reply"


@dataclass(frozen=True)
class Layout:
    """A message's kind and its fields in order, name to numpy type. A field is named after the attribute that it holds,
    or the path to it, and is read and written by that path. `head` and `seconds` list the attributes whose numbers
    share the field of that name."""

    kind: int
    fields: dict[str, str]
    head: tuple[str, ...] = ()
    seconds: tuple[str, ...] = ()

    @cached_property
    def readers(self) -> list[tuple[str, Callable[[Any], Any]]]:
        """Return the fields that hold an attribute of a value as it is, each with what reads it."""
        return [(name, attrgetter(name)) for name in self.fields if name not in ("head", "seconds", *_OPENS)]

    @cached_property
    def places(self) -> list[tuple[str, str, str]]:
        """Return for each field the path to the part that has it, its name there, and its type."""
        return [(*name.rpartition(".")[::2], kind) for name, kind in self.fields.items()]


_TREES = {
    "trees.offsets": "i4",
    "trees.tokens": "i4",
    "trees.parents": "i4",
    "trees.scores": "f4",
    "trees.q_ids": "i4",
    "trees.q_probs": "f4",
}
_STATES = {"state_offsets": "i4", "states": "u2"}
_OPENS = {"open_settings": "u1", "open_offsets": "i4", "open_tokens": "i4", "frees": "i4"}

INFO_REQUEST = Layout(1, {})
INFO_REPLY = Layout(2, {"info": "u1"})
TARGET_WORK = Layout(
    3,
    {
        "head": "i8",
        "tags": "i4",
        "base": "i4",
        "chunk": "i4",
        "room": "i4",
        "states_from": "i4",
        "next_depth": "i4",
        **_TREES,
        **_OPENS,
    },
    head=("sequence", "epoch", "origin", "divergence"),
)
TARGET_REPLY = Layout(
    4,
    {
        "head": "i8",
        "seconds": "f8",
        "status": "i4",
        "num_cached_tokens": "i4",
        "reused": "i4",
        "accepted": "i4",
        "offsets": "i4",
        "tokens": "i4",
        "logprobs": "f4",
        "divergence": "f4",
        "top.ids": "i4",
        "top.logprobs": "f4",
        "scored": "i4",
        "scores.logprobs": "f4",
        "scores.top.ids": "i4",
        "scores.top.logprobs": "f4",
        **_STATES,
        "draft_offsets": "i4",
        "draft_tokens": "i4",
    },
    head=("free_blocks", "total_blocks", "epoch"),
    seconds=("seconds", "draft_seconds", "catch_up_seconds"),
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
        **_STATES,
        **_OPENS,
    },
    head=("sequence", "epoch", "origin", "q_rows", "log_q", "vocab_size"),
    seconds=("patience",),
)
DRAFT_REPLY = Layout(
    6,
    {
        "head": "i8",
        "seconds": "f8",
        "status": "i4",
        "seen": "i4",
        **_TREES,
        "trees.log_q": "f4",
    },
    head=("epoch",),
    seconds=("catch_up_seconds", "draft_seconds", "wait_seconds"),
)

RESIZE = Layout(7, {"head": "i8"}, head=("blocks",))
RESIZED = Layout(8, {"head": "i8"}, head=("status", "total_blocks"))

_LAYOUTS: dict[type, Layout] = {
    TargetWork: TARGET_WORK,
    TargetReply: TARGET_REPLY,
    DraftWork: DRAFT_WORK,
    DraftReply: DRAFT_REPLY,
    Resized: RESIZED,
}
_SETTINGS = tuple(field.name for field in fields_of(Sampling))
_TYPES = {name: np.dtype(name) for name in ("i4", "f4", "i8", "f8", "u2")}
_NOTHING = {"u1": None, **{name: np.zeros(0, dtype) for name, dtype in _TYPES.items()}}
_TOKEN, _COUNT, _HEAD = 2, 4, 5  # index of the token, of the number of fields, and of the fields' lengths


def pack(layout: Layout, **values: Any) -> Ints:
    """Return the message's words, with token 0. Every field of the layout must be given; None is an empty field."""
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
    """Raise PortError unless a model of this server sent the message."""
    if not same(token_of(message), token):
        raise PortError("the message is not of this server's own models")


def token_of(message: Ints) -> int:
    """Return the token that the message was sealed with. Raises PortError if the message has another version."""
    kind_of(message)
    return int(message[_TOKEN:_COUNT].view(np.int64)[0])


def kind_of(message: Ints) -> int:
    """Return the message's kind. Raises PortError if the message has another version."""
    version, kind = message[:2].tolist() if len(message) >= _HEAD else ("none", 0)
    if version != VERSION:
        raise PortError(f"message has version {version}, expected {VERSION}")
    return int(kind)


def unpack(layout: Layout, message: Ints) -> dict[str, dict[str, Any]]:
    """Return the fields by the path to their part and their name there, as views of one copy of the message; JSON
    fields as values, or None if empty."""
    count = len(layout.fields)
    if kind_of(message) != layout.kind or message[_COUNT] != count:
        raise PortError(
            f"message of kind {message[1]} with {message[_COUNT]} fields, expected kind {layout.kind} with {count}"
        )
    sizes = message[_HEAD : _HEAD + count].tolist()
    whole = len(sizes) == count and min(sizes, default=0) >= 0 and _HEAD + count + sum(sizes) == len(message)
    must(whole, "%d words do not fit fields of %s words", len(message), sizes)
    raw = message.tobytes()
    at = 4 * (_HEAD + count)
    parts: dict[str, dict[str, Any]] = {}
    for (part, name, kind), size in zip(layout.places, sizes, strict=True):
        value: Any = _NOTHING[kind]
        if size:
            if kind == "u1":
                value = _json(raw[at : at + 4 * size])
            else:
                must(4 * size % _TYPES[kind].itemsize == 0, "%s ends within a number", name)
                value = np.frombuffer(raw, _TYPES[kind], 4 * size // _TYPES[kind].itemsize, at)
            at += 4 * size
        parts.setdefault(part, {})[name] = value
    return parts


def encode(value: TargetWork | TargetReply | DraftWork | DraftReply | Resized | TargetInfo | DrafterInfo) -> Ints:
    """Return the message for a value."""
    if isinstance(value, (TargetInfo, DrafterInfo)):
        return pack(INFO_REPLY, info=asdict(value))
    layout = _LAYOUTS[type(value)]
    fields = _opens_out(value.opens, value.frees) if isinstance(value, (TargetWork, DraftWork)) else {}
    fields["head"] = [getattr(value, name) for name in layout.head]
    if layout.seconds:
        fields["seconds"] = [getattr(value, name) for name in layout.seconds]
    for name, read in layout.readers:
        fields[name] = read(value)
    return pack(layout, **fields)


def decode_target_work(message: Ints) -> TargetWork:
    parts = _decode(TARGET_WORK, message)
    fields = parts[""]
    opens, frees = _opens_in(fields)
    fields["divergence"] = bool(fields["divergence"])
    work = TargetWork(trees=_trees_in(parts["trees"]), opens=opens, frees=frees, **fields)
    check_target_work(work)
    return work


def decode_target_reply(message: Ints, rows: int | None = None) -> TargetReply:
    """Return the target's reply to a message of `rows` rows, or of an unknown number."""
    parts = _decode(TARGET_REPLY, message)
    fields, scores = parts[""], parts["scores"]
    top = _top_in(parts["top"], len(fields["tokens"]))
    scores["top"] = _top_in(parts["scores.top"], len(scores["logprobs"]))
    _states_in(fields)
    reply = TargetReply(top=top, scores=Scores(**scores), **fields)
    check_target_reply(reply, rows)
    return reply


def _top_in(part: dict[str, Any], tokens: int) -> Top:
    ids, logprobs = part["ids"], part["logprobs"]
    if not len(ids) and not len(logprobs):
        return NO_TOP
    whole = len(ids) == len(logprobs) and tokens > 0 and len(ids) % tokens == 0
    must(whole, "%d top_ids and %d top_logprobs for %d tokens", len(ids), len(logprobs), tokens)
    return Top(ids.reshape(tokens, -1), logprobs.reshape(tokens, -1))


def _states_in(fields: dict[str, Any]) -> None:
    """Reshape the states to one row per position."""
    offsets, states = fields["state_offsets"], fields["states"]
    count = int(offsets[-1]) if len(offsets) else 0
    whole = 0 <= count <= len(states) and (len(states) % count == 0 if count else not len(states))
    must(whole, "%d numbers do not make %d states", len(states), count)
    fields["states"] = states.reshape(count, -1) if count else NO_STATES


def encode_resize(blocks: int) -> Ints:
    return pack(RESIZE, head=[blocks])


def decode_resize(message: Ints) -> int:
    blocks: int = _decode(RESIZE, message)[""]["blocks"]
    must(blocks >= 1, "a pool of %d blocks", blocks)
    return blocks


def decode_resized(message: Ints) -> Resized:
    status, total_blocks = _decode(RESIZED, message)[""].values()
    must(status in tuple(ResizeStatus) and total_blocks >= 1, "status %d of a pool of %d blocks", status, total_blocks)
    return Resized(ResizeStatus(status), total_blocks)


def decode_draft_work(message: Ints) -> DraftWork:
    fields = _decode(DRAFT_WORK, message)[""]
    opens, frees = _opens_in(fields)
    fields |= {name: bool(fields[name]) for name in ("q_rows", "log_q")}
    _states_in(fields)
    work = DraftWork(opens=opens, frees=frees, **fields)
    check_draft_work(work)
    return work


def decode_draft_reply(message: Ints, rows: int | None = None) -> DraftReply:
    """Return the drafter's reply to a message of `rows` rows, or of an unknown number."""
    parts = _decode(DRAFT_REPLY, message)
    reply = DraftReply(trees=_trees_in(parts["trees"]), **parts[""])
    check_draft_reply(reply, rows)
    return reply


def decode_target_info(message: Ints) -> TargetInfo:
    try:
        fields = unpack(INFO_REPLY, message)[""]["info"]
        info = TargetInfo(**{**fields, "end_ids": tuple(fields["end_ids"])})
    except (TypeError, KeyError) as error:
        raise PortError(f"damaged message: facts of a target: {error}") from None
    check_info(info)
    return info


def decode_drafter_info(message: Ints) -> DrafterInfo:
    try:
        info = DrafterInfo(**unpack(INFO_REPLY, message)[""]["info"])
    except TypeError as error:
        raise PortError(f"damaged message: facts of a drafter: {error}") from None
    check_info(info)
    return info


def _decode(layout: Layout, message: Ints) -> dict[str, dict[str, Any]]:
    """Return the attributes of a value under "", and those of its parts under the paths to them."""
    parts = unpack(layout, message)
    own = parts[""]
    for name, attributes in (("head", layout.head), ("seconds", layout.seconds)):
        if attributes:
            numbers = own.pop(name).tolist()
            must(len(numbers) == len(attributes), "%d numbers, expected %d", len(numbers), len(attributes))
            own.update(zip(attributes, numbers))
    return parts


def _trees_in(part: dict[str, Any]) -> Trees:
    nodes, ids, probs = len(part["tokens"]), part["q_ids"], part["q_probs"]
    whole = len(ids) == len(probs) and len(ids) % max(1, nodes) == 0
    must(whole, "%d q_ids and %d q_probs for %d nodes", len(ids), len(probs), nodes)
    there = nodes > 0 and len(ids) > 0
    part["q_ids"], part["q_probs"] = (ids.reshape(nodes, -1), probs.reshape(nodes, -1)) if there else (None, None)
    return Trees(**part)


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
    """Remove the opened and freed tags from the fields, and return them."""
    settings, offsets, tokens, freed = (fields.pop(name) for name in _OPENS)
    frees = tuple(freed.tolist())
    if not settings:
        return (), frees
    must(isinstance(settings, list), "open_settings is not a list")
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


def _json(raw: bytes) -> Any:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise PortError(f"damaged message: {error}") from None

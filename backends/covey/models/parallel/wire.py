"""The messages of rank 0 to the others: one per pass or change of slots, packed int32.

Over a pair of sockets to each process, not a broadcast: a broadcast that waits for the next request runs into its time
limit, while a socket waits for ever, and ends when its other end's process ends.
"""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from covey.contracts.types import Ints
from covey.models.lanes import Lanes, Pass

PASS, COPY, CLEAR = range(3)
_ABSENT = -1


def encode(kind: int, *arrays: Ints | None) -> bytes:
    """Return as bytes the kind, each array's length, then the arrays."""
    head = [kind, *(_ABSENT if array is None else len(array) for array in arrays)]
    body = [np.asarray(array, np.int32) for array in arrays if array is not None]
    packed: Ints = np.concatenate([np.asarray(head, np.int32), *body])
    return packed.tobytes()


def encode_pass(work: Pass, block_size: int) -> bytes:
    lanes = work.lanes
    assert isinstance(lanes, Lanes)
    needed = max(1, -(-int(lanes.lengths.max()) // block_size)) if lanes.rows else 1
    tables = np.ascontiguousarray(lanes.tables[:, :needed]).reshape(-1)
    tails = (lanes.queries, lanes.tail_offsets, lanes.tails)
    return encode(PASS, work.tokens, work.positions, work.slots, work.out, lanes.offsets, lanes.lengths, tables, *tails)


def decode(message: bytes) -> tuple[int, list[Ints | None]]:
    ints = np.frombuffer(message, np.int32)
    kind = int(ints[0])
    count = {PASS: 10, COPY: 2, CLEAR: 1}[kind]
    at = 1 + count
    arrays: list[Ints | None] = []
    for length in ints[1 : 1 + count].tolist():
        arrays.append(None if length == _ABSENT else ints[at : at + length].copy())
        at += max(length, 0)
    return kind, arrays


def decode_pass(arrays: list[Ints | None]) -> Pass:
    tokens, positions, slots, out, offsets, lengths, tables, queries, tail_offsets, tails = arrays
    lanes = Lanes(
        there(offsets),
        there(lengths),
        there(tables).reshape(len(there(lengths)), -1),
        queries,
        tail_offsets,
        there(tails),
    )
    return Pass(there(tokens), there(positions), there(slots), lanes, there(out))


def there(array: Ints | None) -> Ints:
    """Return an array that every message of its kind has."""
    assert array is not None
    return array


def send_json(channel: Connection, value: dict[str, Any]) -> None:
    channel.send_bytes(json.dumps(value).encode())


def receive_json(channel: Connection) -> dict[str, Any]:
    """Return the next message; EOFError or OSError when the other end is gone."""
    message: dict[str, Any] = json.loads(channel.recv_bytes())
    return message

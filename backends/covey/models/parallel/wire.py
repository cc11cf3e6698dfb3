"""The messages of rank 0 to the others: one per pass or change of slots, packed int32.

Over a pair of sockets to each process, not a broadcast: a broadcast that waits for the next request runs into its time
limit, while a socket waits for ever, and ends when its other end's process ends.
"""

from __future__ import annotations

import json
import socket
from typing import Any

import numpy as np

from covey.models.lanes import Lanes, Pass
from covey.types import Ints

PASS, COPY, CLEAR = range(3)
_ABSENT = -1


def encode(kind: int, *arrays: Ints | None) -> bytes:
    """Kind, each array's length, then the arrays."""
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
    """An array that every message of its kind has."""
    assert array is not None
    return array


def send(channel: socket.socket, message: bytes) -> None:
    channel.sendall(len(message).to_bytes(4, "little") + message, socket.MSG_NOSIGNAL)


def receive(channel: socket.socket) -> bytes:
    """The next message; EOFError when the other end is gone."""
    return _read(channel, int.from_bytes(_read(channel, 4), "little"))


def send_json(channel: socket.socket, value: dict[str, Any]) -> None:
    send(channel, json.dumps(value).encode())


def receive_json(channel: socket.socket) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(receive(channel))
    return message


def _read(channel: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        try:
            piece = channel.recv(count - len(received))
        except ConnectionError as error:
            raise EOFError from error
        if not piece:
            raise EOFError
        received += piece
    return bytes(received)

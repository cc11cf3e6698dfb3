"""The innermost loop of a pass in the matrix instructions of newer Intel CPUs (AMX).

One instruction multiplies 16 rows of 32 numbers by 16 columns, all in bfloat16, and adds to 16 x 16 sums in float32. So
a pass of 32 rows takes little longer than one of a single row. A single row is faster in vectors, which sum in the same
order (`covey.models.native.tiles`).

    registers    0 1    sums of the first 16 rows        4    numbers of the first 16 rows    6 7    weights
                 2 3    ... of the others                5    ... of the others
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from covey.process import cpu

ROWS = 32  # most rows of a tile
SIDE = 16  # rows and columns of a register's sums
STEP = 32  # numbers of a row that one instruction multiplies
COLUMNS = 32  # of a panel
LINE = 64  # bytes of a register's row
_SHAPED = (16, 24, 48)  # where a shape has words with the registers' widths, two, and with their rows
_STEP_BYTES = STEP * COLUMNS * 2  # of weights
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18  # of Linux on x86-64

_I8, _I32, _I64 = (ir.IntType(bits) for bits in (8, 32, 64))
_VOID, _POINTER = ir.VoidType(), ir.PointerType()


@cache
def allowed() -> bool:
    """Return whether this process may use the registers. The system grants them to a process that asks, and older
    systems and some sandboxes refuse."""
    if platform.machine() != "x86_64" or "amx-bf16" not in cpu.features():
        return False
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def write(module: Any, builder: Any, name: str, given: dict[str, Any], lines: int) -> None:
    """Write the body of a tile's function (`covey.models.native.tiles`). Each step prefetches `lines` cache lines."""
    shapes = ir.GlobalVariable(module, ir.ArrayType(_I8, LINE * (ROWS + 1)), f"{name}_shapes")
    shapes.initializer = ir.Constant(shapes.type.pointee, bytearray(b"".join(map(_shape, range(ROWS + 1)))))
    shapes.global_constant, shapes.linkage = True, "internal"
    rows = given["rows"]
    _shaped(module, builder, builder.add(builder.ptrtoint(shapes, _I64), builder.mul(rows, _I64(LINE))))
    both, one, end = (builder.append_basic_block() for _ in range(3))
    builder.cbranch(builder.icmp_signed(">", rows, _I64(SIDE)), both, one)
    for block, halves in ((both, 2), (one, 1)):
        builder.position_at_end(block)
        _Writer(builder, given, lines).tile(halves)
        builder.branch(end)
    builder.position_at_end(end)


def _shaped(module: Any, builder: Any, shape: Any) -> None:
    """Give the registers the shapes at an address, which takes 400 cycles, unless they have them."""
    kind = ir.FunctionType(_VOID, [_POINTER])
    load, store = (
        cgutils.get_or_insert_function(module, kind, f"llvm.x86.{name}") for name in ("ldtilecfg", "sttilecfg")
    )
    now = builder.alloca(ir.ArrayType(_I8, LINE))
    now.align = LINE
    builder.call(store, [now])
    present, same = builder.ptrtoint(now, _I64), ir.Constant(ir.IntType(1), 1)
    for at in _SHAPED:
        places = [builder.inttoptr(builder.add(each, _I64(at)), _POINTER) for each in (present, shape)]
        same = builder.and_(
            same, builder.icmp_signed("==", *(builder.load(each, typ=_I64, align=8) for each in places))
        )
    with builder.if_then(builder.not_(same)):
        builder.call(load, [builder.inttoptr(shape, _POINTER)])


def _shape(rows: int) -> bytes:
    """Return the shapes of all registers for a number of rows."""
    first, others = min(rows, SIDE), max(0, rows - SIDE)
    counts = [first, first, others, others, first, others, SIDE, SIDE]
    widths = b"".join((LINE if count else 0).to_bytes(2, "little") for count in counts)
    return bytes([1]) + bytes(15) + widths + bytes(16) + bytes(counts) + bytes(8)


class _Writer:
    def __init__(self, builder: Any, given: dict[str, Any], lines: int) -> None:
        self._b, self._given, self._lines = builder, given, lines

    def tile(self, halves: int) -> None:
        b, given = self._b, self._given
        sums = [(2 * half + side, half, side) for half in range(halves) for side in range(2)]
        zero, load, begun = (b.append_basic_block() for _ in range(3))
        b.cbranch(b.icmp_signed("!=", given["fresh"], _I64(0)), zero, load)
        b.position_at_end(zero)
        for number, _, _ in sums:
            self._call("llvm.x86.tilezero", _I8(number))
        b.branch(begun)
        b.position_at_end(load)
        for number, half, side in sums:
            self._call("llvm.x86.tileloadd64", _I8(number), self._sums_at(half, side), given["y_row"])
        b.branch(begun)
        b.position_at_end(begun)
        self._steps(halves)
        for number, half, side in sums:
            self._call("llvm.x86.tilestored64", _I8(number), self._sums_at(half, side), given["y_row"])

    def _steps(self, halves: int) -> None:
        b, given = self._b, self._given
        before, head, body, end = b.block, *(b.append_basic_block() for _ in range(3))
        b.branch(head)
        b.position_at_end(head)
        done = b.phi(_I64)
        done.add_incoming(_I64(0), before)
        b.cbranch(b.icmp_signed("<", done, given["steps"]), body, end)
        b.position_at_end(body)
        w = b.add(given["w"], b.mul(done, _I64(_STEP_BYTES)))
        x = b.add(given["x"], b.mul(done, _I64(LINE)))
        ahead = b.add(given["ahead"], b.mul(done, _I64(LINE * self._lines)))
        for side in range(2):
            self._load(6 + side, b.add(w, _I64(LINE * side)), _I64(2 * LINE))
            self._fetch(ahead, side)
        for half in range(halves):
            self._load(4 + half, b.add(x, b.mul(given["x_row"], _I64(SIDE * half))), given["x_row"])
            for side in range(2):
                self._call("llvm.x86.tdpbf16ps", _I8(2 * half + side), _I8(4 + half), _I8(6 + side))
        done.add_incoming(b.add(done, _I64(1)), b.block)
        b.branch(head)
        b.position_at_end(end)

    def _fetch(self, ahead: Any, part: int) -> None:
        b, half = self._b, self._lines // 2
        for line in range(part * half, part * half + half):
            at = b.inttoptr(b.add(ahead, _I64(LINE * line)), _POINTER)
            self._call("llvm.prefetch.p0", at, _I32(0), _I32(2), _I32(1))  # into the second-level cache

    def _load(self, number: int, at: Any, row: Any) -> None:
        self._call("llvm.x86.tileloadd64", _I8(number), self._b.inttoptr(at, _POINTER), row)

    def _sums_at(self, half: int, side: int) -> Any:
        b, given = self._b, self._given
        row = b.mul(given["y_row"], _I64(SIDE * half))
        return b.inttoptr(b.add(b.add(given["y"], row), _I64(LINE * side)), _POINTER)

    def _call(self, name: str, *given: Any) -> None:
        kind = ir.FunctionType(_VOID, [each.type for each in given])
        self._b.call(cgutils.get_or_insert_function(self._b.module, kind, name), given)

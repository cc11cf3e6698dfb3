"""The innermost loop of a CPU's pass: a few rows times a panel of columns, in vector instructions.

    y[rows, 16 * vectors] += x[rows, k] * w[k, 16 * vectors]

A panel's columns lie next to each other, step after step. So the CPU reads it from beginning to end, once for all rows
whose sums fit in registers. A step covers the terms that one instruction sums:

    PAIRS    2 of bfloat16, x too                 w [k / 2, columns, 2]    sums in float32
    WIDENED  1 of bfloat16, x in float32          w [k, columns]           ... for CPUs that cannot multiply bfloat16
    FLOATS   1 of float32                         w [k, columns]
    BYTES    4 of w + 128 in uint8, x in int8     w [k / 4, columns, 4]    sums in int32, scaled for every 64 of k
    AMX      32 of bfloat16, x too                w [k / 2, columns, 2]    ... by `covey.models.native.amx`

A column's sum has one order for any number of rows and any split of k. So a row's results are the same bits in any
pass. Numba has no vector types, so the loop is written in LLVM's instructions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from functools import cache
from typing import Any

import llvmlite
from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from covey.models.native import LANES, amx
from covey.models.native.words import CPU, BFloat16, code_of
from covey.process import cpu

PAIRS, WIDENED, FLOATS, BYTES, AMX = range(5)
GROUP = 64  # numbers of a row in bytes that share a scale

_I16, _I32, _I64 = (ir.IntType(bits) for bits in (16, 32, 64))
_F32, _VOID, _POINTER = ir.FloatType(), ir.VoidType(), ir.PointerType()
_FLOATS, _INTS, _SHORTS = (ir.VectorType(each, LANES) for each in (_F32, _I32, _I16))
_PAIRS = ir.VectorType(_I16, 2 * LANES)
_BFLOATS = ir.VectorType(BFloat16(), 2 * LANES)
_STEP_BYTES = {PAIRS: 64, WIDENED: 32, FLOATS: 64, BYTES: 64}  # of a vector's columns in a step
LINE = 64
_FLUSHES = 0x8040  # bits of the control register: subnormal operands and results are 0
_ENGINES: list[Any] = []  # own the code, so they must not be freed
ARGUMENTS = ("rows", "w", "w_step", "x", "x_row", "scales", "scales_row", "y", "y_row", "steps", "fresh", "ahead")


# True: there are 32 registers of 16 numbers. False: there are 16 of 8 numbers.
WIDE = "avx512f" in cpu.features()
# True: one instruction multiplies four bytes and adds them. False: two instructions multiply pairs of them.
SUMS_FOURS = "avx512vnni" in cpu.features()


def has(kind: int) -> bool:
    """Return whether this CPU has the instructions for a kind of multiplication."""
    if kind == AMX:
        return amx.allowed()
    if kind == BYTES:
        return cpu.multiplies_bytes()
    return kind != PAIRS or "avx512bf16" in cpu.features()


def most_rows(vectors: int, kind: int = PAIRS) -> int:
    """Return the most rows of a tile with `vectors` vectors whose sums fit in registers, with weights and a row. So do
    the addresses of eleven rows."""
    if kind == AMX:
        return amx.ROWS
    return min(24 // vectors, 11) if WIDE else {1: 6, 2: 2}.get(vectors, 1)


@dataclass(frozen=True, slots=True)
class Tile:
    """The shape of a tile: its vectors of columns, and how many cache lines each turn of its loop prefetches for the
    next reader. A turn is `turn` steps."""

    kind: int
    vectors: int
    lines: int = 0
    turn: int = 1


@cache
def addresses(tiles: frozenset[Tile]) -> Mapping[Tile, int]:
    """Return the address of each tile's function: `tile(rows, w, w_step, x, x_row, scales, scales_row, y, y_row, steps,
    fresh, ahead)`. Its arguments are addresses and distances in bytes, for 1 to `most_rows(vectors)` rows. Sums begin
    at y, or at zero if `fresh`. Lines are prefetched from `ahead` on. For BYTES, a step is a whole group. At `scales` a
    row has two numbers per group: a float32 factor of its sums, and the int32 that they begin at."""
    names = {tile: "_".join(["tile", *map(str, astuple(tile))]) for tile in tiles}
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target, (name, features) = binding.Target.from_default_triple(), CPU
    machine = target.create_target_machine(cpu=name, features=features, opt=2, jit=True)
    made = code_of(f"{llvmlite.__version__} {sorted(names.values())}", lambda: _made(names, machine))
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(made))
    engine.finalize_object()
    _ENGINES.append(engine)
    return {tile: engine.get_function_address(name) for tile, name in names.items()}


def _made(names: Mapping[Tile, str], machine: Any) -> bytes:
    """Return the tiles' code as an object file."""
    module = ir.Module()
    for tile, name in names.items():
        _write(module, name, tile)
    return bytes(machine.emit_object(binding.parse_assembly(str(module))))


def _write(module: Any, name: str, tile: Tile) -> None:
    function = ir.Function(module, ir.FunctionType(_VOID, [_I64] * len(ARGUMENTS)), name)
    builder = ir.IRBuilder(function.append_basic_block())
    given = dict(zip(ARGUMENTS, function.args))
    end, more = builder.append_basic_block(), builder.append_basic_block()
    switch = builder.switch(given["rows"], more)
    for count in range(1, 2 if tile.kind == AMX else 1 + most_rows(tile.vectors)):
        case = builder.append_basic_block()
        switch.add_case(_I64(count), case)
        builder.position_at_end(case)
        made = _Tile(builder, tile, count, given)
        {BYTES: made.groups, AMX: made.apart}.get(tile.kind, made.loop)()
        builder.branch(end)
    builder.position_at_end(more)
    if tile.kind == AMX:
        amx.write(module, builder, name, given, tile.lines)
    builder.branch(end)
    builder.position_at_end(end)
    builder.ret_void()


def _each(value: int) -> Any:
    return ir.Constant(_PAIRS, [value] * 2 * LANES)


def _numbers(first: int, count: int) -> Any:
    return ir.Constant(ir.VectorType(_I32, count), list(range(first, first + count)))


@intrinsic
def call(_context, address, rows, w, w_step, x, x_row, scales, scales_row, y, y_row, steps, fresh, ahead):
    """Call the tile at an address."""

    def generate(context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        kind = ir.FunctionType(_VOID, [_I64] * len(ARGUMENTS))
        builder.call(builder.inttoptr(given[0], kind.as_pointer()), given[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * (1 + len(ARGUMENTS))), generate


class _Loop:
    """A counted loop. Values that it carries from turn to turn are given by type and first value. Carried addresses
    that only move by a fixed step each turn are given separately, in `moving`."""

    def __init__(self, builder: Any, count: Any, carried: list[tuple[Any, Any]], moving: list[tuple[Any, Any]]) -> None:
        self._builder, before = builder, builder.block
        self._head, body, self._end = (builder.append_basic_block() for _ in range(3))
        builder.branch(self._head)
        builder.position_at_end(self._head)
        self._left, self._moving = builder.phi(_I64), moving
        self._left.add_incoming(count, before)
        self.values: list[Any] = []
        self.addresses: list[Any] = []
        for kept, firsts in ((self.values, carried), (self.addresses, [(_I64, first) for first, _ in moving])):
            for kind, first in firsts:
                value = builder.phi(kind)
                value.add_incoming(first, before)
                kept.append(value)
        builder.cbranch(builder.icmp_signed(">", self._left, _I64(0)), body, self._end)
        builder.position_at_end(body)

    def close(self, values: list[Any]) -> list[Any]:
        """End a turn with these values. Return the values after the last turn."""
        builder = self._builder
        moved = [builder.add(address, by) for address, (_, by) in zip(self.addresses, self._moving)]
        self._left.add_incoming(builder.sub(self._left, _I64(1)), builder.block)
        for phi, value in zip((*self.values, *self.addresses), (*values, *moved)):
            phi.add_incoming(value, builder.block)
        builder.branch(self._head)
        builder.position_at_end(self._end)
        return self.values


class _Tile:
    def __init__(self, builder: Any, tile: Tile, rows: int, given: dict[str, Any]) -> None:
        self._b, self._rows = builder, rows
        self._kind, self._vectors, self._lines, self._turn = tile.kind, tile.vectors, tile.lines, tile.turn
        self._cells = [(row, vector) for row in range(rows) for vector in range(tile.vectors)]
        self._given = given
        y, y_row = given["y"], given["y_row"]
        self._rows_of_x = [self._sum(given["x"], self._times(given["x_row"], row)) for row in range(rows)]
        self._places = [self._at(y, self._times(y_row, row), 4 * LANES * vector) for row, vector in self._cells]

    def loop(self) -> None:
        given, turn = self._given, self._turn
        carried = [(_FLOATS, first) for first in self._begun()]
        step, lines = self._times(given["w_step"], turn), _I64(LINE * self._lines)
        moving = [(given["w"], step), (_I64(0), _I64(4 * turn)), (given["ahead"], lines)]
        loop = _Loop(self._b, self._b.sdiv(given["steps"], _I64(turn)), carried, moving)
        w, at, ahead = loop.addresses
        sums = loop.values
        for number in range(turn):
            if number:
                w = self._b.add(w, given["w_step"])
            sums = self._step(sums, w, [self._sum(row, at, 4 * number) for row in self._rows_of_x])
        self._fetch(ahead)
        self._write(loop.close(sums))

    def groups(self) -> None:
        b, given, steps = self._b, self._given, GROUP // 4
        moving = [(given["w"], given["w_step"]), (_I64(0), _I64(GROUP)), (given["scales"], _I64(8))]
        moving.append((given["ahead"], _I64(LINE * self._lines * steps)))
        outer = _Loop(b, given["steps"], [(_FLOATS, first) for first in self._begun()], moving)
        w, done, scales, ahead = outer.addresses
        factors, starts = [], []
        for row in range(self._rows):
            at = self._sum(scales, self._times(given["scales_row"], row))
            factors.append(self._spread(b.load(self._at(at), typ=_F32, align=4), _FLOATS))
            starts.append(self._spread(b.load(self._at(at, 4), typ=_I32, align=4), _INTS))
        moving = [(w, b.sdiv(given["w_step"], _I64(steps))), (done, _I64(4)), (ahead, _I64(LINE * self._lines))]
        inner = _Loop(b, _I64(steps), [(_INTS, starts[row]) for row, _ in self._cells], moving)
        w, at, ahead = inner.addresses
        self._fetch(ahead)
        sums = inner.close(self._step(inner.values, w, [self._sum(row, at) for row in self._rows_of_x]))
        scaled = [
            self._fma(b.sitofp(total, _FLOATS), factors[row], value)
            for (row, _), total, value in zip(self._cells, sums, outer.values)
        ]
        self._write(outer.close(scaled))

    def apart(self) -> None:
        """Sum as matrix instructions do: even and odd numbers apart, added after every 32, and subnormal ones as 0."""
        b, given, steps = self._b, self._given, amx.STEP // 2
        before = self._flushing()
        moving = [(given["w"], given["w_step"]), (_I64(0), _I64(4 * steps)), (given["ahead"], _I64(LINE * self._lines))]
        loop = _Loop(b, given["steps"], [(_FLOATS, first) for first in self._begun()], moving)
        w, at, ahead = loop.addresses
        even = odd = [ir.Constant(_FLOATS, [0.0] * LANES)] * len(self._cells)
        for number in range(steps):
            here, fetched = self._sum(w, LINE * self._vectors * number), self._lines // steps
            lines = [b.load(self._at(here, LINE * each), typ=_INTS, align=4) for each in range(self._vectors)]
            pairs = [b.load(self._at(row, at, 4 * number), typ=_I32, align=4) for row in self._rows_of_x]
            weights, rows = (
                [self._both(each) for each in lines],
                [self._both(self._spread(each, _INTS)) for each in pairs],
            )
            even = [self._fma(weights[of][0], rows[row][0], value) for (row, of), value in zip(self._cells, even)]
            odd = [self._fma(weights[of][1], rows[row][1], value) for (row, of), value in zip(self._cells, odd)]
            self._fetch(self._sum(ahead, LINE * fetched * number), fetched)
        sums = [b.fadd(total, b.fadd(*both)) for total, *both in zip(loop.values, even, odd)]
        self._write(loop.close(sums))
        self._call("llvm.x86.sse.ldmxcsr", _VOID, before)

    def _flushing(self) -> Any:
        """Let the thread take subnormal numbers as 0. Return where its control register is kept from before."""
        b = self._b
        before, now = b.alloca(_I32), b.alloca(_I32)
        self._call("llvm.x86.sse.stmxcsr", _VOID, before)
        b.store(b.or_(b.load(before, typ=_I32), _I32(_FLUSHES)), now)
        self._call("llvm.x86.sse.ldmxcsr", _VOID, now)
        return before

    def _both(self, pairs: Any) -> tuple[Any, Any]:
        """Return the even and the odd numbers of pairs of bfloat16, in float32."""
        b = self._b
        even = b.shl(pairs, ir.Constant(_INTS, [16] * LANES))
        odd = b.and_(pairs, ir.Constant(_INTS, [0xFFFF0000] * LANES))
        return b.bitcast(even, _FLOATS), b.bitcast(odd, _FLOATS)

    def _fetch(self, ahead: Any, lines: int = -1) -> None:
        for line in range(self._lines if lines < 0 else lines):
            fetched = self._at(ahead, LINE * line)
            self._call("llvm.prefetch.p0", _VOID, fetched, _I32(0), _I32(2), _I32(1))  # into the second-level cache

    def _step(self, sums: list[Any], w: Any, x: list[Any]) -> list[Any]:
        """Return the sums after one more step."""
        weights = [self._weights(self._at(w, _STEP_BYTES[self._kind] * each)) for each in range(self._vectors)]
        rows = [self._activation(self._at(each)) for each in x]
        return [self._product(value, weights[vector], rows[row]) for (row, vector), value in zip(self._cells, sums)]

    def _weights(self, at: Any) -> Any:
        b = self._b
        if self._kind == PAIRS:
            return b.load(at, typ=_BFLOATS, align=2)
        if self._kind == WIDENED:
            wide = b.zext(b.load(at, typ=_SHORTS, align=2), _INTS)
            return b.bitcast(b.shl(wide, ir.Constant(_INTS, [16] * LANES)), _FLOATS)
        loaded = b.load(at, typ=_FLOATS if self._kind == FLOATS else _INTS, align=4)
        if self._kind == FLOATS or SUMS_FOURS:
            return loaded
        pairs = b.bitcast(loaded, _PAIRS)
        return b.and_(pairs, _each(0xFF)), b.lshr(pairs, _each(8))

    def _activation(self, at: Any) -> Any:
        """Return a row's numbers of a step, repeated in every lane."""
        b = self._b
        if self._kind in (WIDENED, FLOATS):
            return self._spread(b.load(at, typ=_F32, align=4), _FLOATS)
        packed = self._spread(b.load(at, typ=_I32, align=1), _INTS)
        if self._kind == PAIRS:
            return b.bitcast(packed, _BFLOATS)
        if SUMS_FOURS:
            return packed
        pairs = b.bitcast(packed, _PAIRS)
        return b.ashr(b.shl(pairs, _each(8)), _each(8)), b.ashr(pairs, _each(8))

    def _product(self, sums: Any, weights: Any, row: Any) -> Any:
        if self._kind == PAIRS:
            return self._call("llvm.x86.avx512bf16.dpbf16ps.512", _FLOATS, sums, weights, row)
        if self._kind != BYTES:
            return self._fma(weights, row, sums)
        if SUMS_FOURS:
            return self._call("llvm.x86.avx512.vpdpbusd.512", _INTS, sums, weights, row)
        for one, two in zip(weights, row):  # even bytes, then odd bytes, each as pairs of 16 bits
            sums = self._b.add(sums, self._pairs(one, two))
        return sums

    def _pairs(self, one: Any, two: Any) -> Any:
        """Return sums of two products of 16-bit numbers each."""
        if WIDE:
            return self._call("llvm.x86.avx512.pmaddw.d.512", _INTS, one, two)
        b, kind = self._b, ir.VectorType(_I32, LANES // 2)
        halves = [
            self._call(
                "llvm.x86.avx2.pmadd.wd",
                kind,
                *(b.shuffle_vector(each, each, _numbers(first, LANES)) for each in (one, two)),
            )
            for first in (0, LANES)
        ]
        return b.shuffle_vector(*halves, _numbers(0, LANES))

    def _fma(self, one: Any, two: Any, three: Any) -> Any:
        return self._call("llvm.fma.v16f32", _FLOATS, one, two, three)

    def _begun(self) -> list[Any]:
        b = self._b
        zero, load, begun = (b.append_basic_block() for _ in range(3))
        b.cbranch(b.icmp_signed("!=", self._given["fresh"], _I64(0)), zero, load)
        b.position_at_end(zero)
        b.branch(begun)
        b.position_at_end(load)
        loaded = [b.load(place, typ=_FLOATS, align=4) for place in self._places]
        b.branch(begun)
        b.position_at_end(begun)
        values = []
        for value in loaded:
            phi = b.phi(_FLOATS)
            phi.add_incoming(ir.Constant(_FLOATS, [0.0] * LANES), zero)
            phi.add_incoming(value, load)
            values.append(phi)
        return values

    def _write(self, values: list[Any]) -> None:
        for place, value in zip(self._places, values):
            self._b.store(value, place, align=4)

    def _times(self, value: Any, by: int) -> Any:
        return self._b.mul(value, _I64(by))

    def _sum(self, first: Any, *others: Any) -> Any:
        for other in others:
            first = self._b.add(first, _I64(other) if isinstance(other, int) else other)
        return first

    def _at(self, *parts: Any) -> Any:
        return self._b.inttoptr(self._sum(*parts), _POINTER)

    def _spread(self, value: Any, vector: Any) -> Any:
        b, nothing = self._b, ir.Constant(vector, ir.Undefined)
        one = b.insert_element(nothing, value, _I32(0))
        return b.shuffle_vector(one, nothing, ir.Constant(_INTS, [0] * LANES))

    def _call(self, name: str, result: Any, *given: Any) -> Any:
        kind = ir.FunctionType(result, [each.type for each in given])
        return self._b.call(cgutils.get_or_insert_function(self._b.module, kind, name), given)

"""Operations on single words that Numba lacks: bits of a number, counters that threads share, and yielding the
processor."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numba
import numpy.typing as npt
import psutil
from llvmlite import binding, ir
from numba import njit
from numba.core import cgutils, types
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys
from numba.extending import intrinsic, overload

from covey.models.native.compiled import KEPT
from covey.process import cpu
from covey_client import files

DIGEST = 32  # bytes before the code in a file
numba.config.CACHE_DIR = str(KEPT)
# The CPU and features for LLVM: this machine's, or those of a chosen CPU.
CPU = (cpu.chosen(), "") if cpu.chosen() else (binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten())
numba.config.CPU_NAME, numba.config.CPU_FEATURES = CPU


def leave_compiler() -> None:
    """Free this process's unmodified pages of LLVM's library, some 70 MB. A later compilation reads them again."""
    libc = ctypes.CDLL(None)
    for each in psutil.Process().memory_maps(grouped=False):
        changed = each.anonymous or each.swap  # pages that the file does not hold
        if each.path.endswith("libllvmlite.so") and each.perms.startswith("r-") and not changed:
            first, end = (int(address, 16) for address in each.addr.split("-"))
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)


def code_of(what: str, make: Callable[[], bytes]) -> bytes:
    """Return code for this CPU. It is made once for all processes, and again if the file is damaged, because damaged
    code would be run. `what` names all that it depends on, other than these files."""
    path = KEPT / f"{hashlib.sha256(what.encode()).hexdigest()[:16]} {cpu.key()}.o"
    with contextlib.suppress(OSError):
        kept = path.read_bytes()
        if kept[:DIGEST] == hashlib.sha256(kept[DIGEST:]).digest():
            return kept[DIGEST:]
    made = make()
    with contextlib.suppress(OSError):
        files.replace(path, hashlib.sha256(made).digest() + made)
    return made


Array: TypeAlias = npt.NDArray[Any]
F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}  # numpy's divisions need no branch
_I16, _I32, _I64, _POINTER = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.PointerType()
_ROUNDS = "avx512bf16" in cpu.features()  # has an instruction; else LLVM would call a function that does not exist


class BFloat16(ir.Type):  # type: ignore[misc]
    """LLVM's bfloat type, for which llvmlite has no class."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat16)

    def __hash__(self) -> int:
        return hash(BFloat16)


class Kept(FunctionCache):  # type: ignore[misc]
    """Numba's cache of a function, which loads kept code without all that only a compilation needs: 0.8 s."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        return self._load_overload(sig, target_context)


def compiled(function: F, **options: Any) -> F:
    """Return the function, compiled on its first call with each set of types; it releases the GIL."""
    made = njit(**_OPTIONS, **options)(function)
    made._cache = Kept(function)
    return made  # type: ignore[no-any-return]


def compiled_sum(function: F) -> F:
    """Compile a sum whose order the compiler may choose by the number of terms."""
    return compiled(function, fastmath={"reassoc"})


@intrinsic
def bits_of(_context, value):
    """Return a float32's bits, as an int32."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.bitcast(given[0], _I32)

    return types.int32(types.float32), generate


@intrinsic
def number_of(_context, bits):
    """Return the float32 of an int32's bits."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.bitcast(given[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def add_to(_context, address, amount):
    """Add to the int64 at an address atomically; return its old value."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(given[0], _POINTER), given[1], "seq_cst")

    return types.int64(types.int64, types.int64), generate


@intrinsic
def value_at(_context, address):
    """Return the int64 at an address, including another thread's latest write."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.load_atomic(builder.inttoptr(given[0], _POINTER), "seq_cst", 8, typ=_I64)

    return types.int64(types.int64), generate


@intrinsic
def let_others_run(_context):
    """Yield the processor to another thread that waits for it, if one does."""

    def generate(_context: Any, builder: Any, _signature: Any, _given: Any) -> Any:
        yielding = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I32, []), "sched_yield")
        return builder.call(yielding, [])

    return types.int32(), generate


@intrinsic
def rounded(_context, value):
    """Return the bits of the bfloat16 nearest to a float32."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        if _ROUNDS:
            return builder.bitcast(builder.fptrunc(given[0], BFloat16()), _I16)
        bits = builder.bitcast(given[0], _I32)
        lowest = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))  # kept bit, so that ties go to the even number
        nearest = builder.add(bits, builder.add(lowest, _I32(0x7FFF)))
        quiet = builder.or_(bits, _I32(0x400000))  # for NaN, which the addition could make infinite
        number = builder.fcmp_ordered("ord", given[0], given[0])
        return builder.trunc(builder.lshr(builder.select(number, nearest, quiet), _I32(16)), _I16)

    return types.uint16(types.float32), generate


@intrinsic
def widened(_context, bits):
    """Return the float32 of a bfloat16's bits."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.bitcast(builder.shl(builder.zext(given[0], _I32), _I32(16)), ir.FloatType())

    return types.float32(types.uint16), generate


def as_float(value):
    """Return a stored number, bfloat16's bits or float32, as a float32."""
    raise NotImplementedError(value)


@overload(as_float, inline="always")
def _as_float(value):
    if value == types.uint16:
        return lambda value: widened(value)  # noqa: PLW0108 - Numba compiles only Python functions
    return lambda value: value


def as_stored(value, like):
    """Return a float32 in the storage type of `like`."""
    raise NotImplementedError(value, like)


@overload(as_stored, inline="always")
def _as_stored(value, like):
    if like == types.uint16:
        return lambda value, like: rounded(value)
    return lambda value, like: value

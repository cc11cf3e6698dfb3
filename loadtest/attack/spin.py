"""Makes threads of another process of this user spin: the code at each thread's current place becomes a jump to itself.
Only for Linux on x86-64; a spinning process never recovers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from pathlib import Path

ATTACH, DETACH, GET_REGISTERS, PEEK, POKE = 16, 17, 12, 1, 4
REGISTERS, RIP = 27, 16  # of eight bytes; `rip` among them
JUMP_TO_ITSELF = 0xFEEB
ALL_THREADS = 0x40000000  # of `waitpid`: threads too (__WALL)


def possible() -> bool:
    return platform.machine() == "x86_64"


def spin(pid: int, *, every_thread: bool = False) -> None:
    """Spin the main thread, or every one. Raises OSError if that is not allowed."""
    threads = sorted(map(int, os.listdir(Path("/proc", str(pid), "task")))) if every_thread else [pid]
    for thread in threads:
        with contextlib.suppress(ProcessLookupError):
            _spin(thread)


def _spin(thread: int) -> None:
    _call(ATTACH, thread, 0, 0)
    try:
        os.waitpid(thread, ALL_THREADS)
        registers = (ctypes.c_uint64 * REGISTERS)()
        _call(GET_REGISTERS, thread, 0, ctypes.addressof(registers))
        at = int(registers[RIP])
        word = _call(PEEK, thread, at, 0) & 0xFFFFFFFFFFFFFFFF
        _call(POKE, thread, at, (word & ~0xFFFF) | JUMP_TO_ITSELF)
    finally:
        _call(DETACH, thread, 0, 0)


def _call(request: int, thread: int, address: int, data: int) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.restype = ctypes.c_long
    library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    ctypes.set_errno(0)
    found = int(library.ptrace(request, thread, address, data))
    if found == -1 and (number := ctypes.get_errno()):
        raise OSError(number, os.strerror(number))
    return found

"""Keeps other users from reading prompts in a server's shared memory.

The library that makes Triton's regions opens them to all users with `fchmod` to 0644, overriding the umask. A filter of
system calls, which tritonserver and its stubs inherit, skips that one call, so the umask applies.
"""

from __future__ import annotations

import ctypes
import platform
import struct
from collections.abc import Callable

UMASK = 0o077
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2  # of prctl
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # opcodes of the kernel's packet filter
_ALLOW, _PRETEND = 0x7FFF0000, 0x00050000  # make the call; skip it and return 0
_NUMBER, _MACHINE, _MODE = 0, 4, 24  # offsets of a call's number, its architecture and its second argument
_OPEN_TO_ALL = 0o644
_MACHINES = {"x86_64": (0xC000003E, 91), "aarch64": (0xC00000B7, 52)}  # the architecture, and its number of fchmod


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def keeper() -> Callable[[], None] | None:
    """Return the call for a child between fork and exec; None on an unknown machine type."""
    known = _MACHINES.get(platform.machine())
    if known is None:
        return None
    machine, fchmod = known
    steps = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 0, 5, machine),
        (_LOAD, 0, 0, _NUMBER),
        (_EQUAL, 0, 3, fchmod),
        (_LOAD, 0, 0, _MODE),
        (_EQUAL, 0, 1, _OPEN_TO_ALL),
        (_RETURN, 0, 0, _PRETEND),
        (_RETURN, 0, 0, _ALLOW),
    ]
    code = b"".join(struct.pack("=HBBI", *step) for step in steps)
    program = _Program(len(steps), code)
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # loaded before the fork
    arguments = _FILTER, ctypes.byref(program)

    def in_child() -> None:
        """Install the filter. If the kernel refuses it, the regions stay open; the launcher notices and logs that."""
        prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        prctl(_SECCOMP, *arguments)

    return in_child

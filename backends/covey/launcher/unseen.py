"""Starts a program whose secret arguments other users of the machine cannot read.

Triton takes its secret only as an argument, and the kernel shows every process's arguments to all users. It shows the
place where they lay at the program's start, not the place that `argv` points to. So the program is started traced,
which stops it before its first instruction. Its `argv` is then pointed into its environment, which only its own user
can read, and it continues:

    argv  [0] "tritonserver"  [1] ------.    the place that the kernel shows:  tritonserver --http-restricted-api=unseen
    environment  UNSEEN_1=--http-restricted-api=model-repository:admin-key=5f3a
"""

from __future__ import annotations

import ctypes
import logging
import os
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

VARIABLE = "UNSEEN_"
_TRACED_BY_PARENT, _DETACH = 0, 17  # of ptrace
_START_OF_STACK = 25  # field of /proc/PID/stat after the name; the address of the count, `argv` and `environ`
_WORD = struct.calcsize("P")
_log = logging.getLogger("covey.launcher")


def start(
    words: Sequence[str], secret: str, env: dict[str, str], preexec_fn: Callable[[], None], **settings: Any
) -> subprocess.Popen[bytes]:
    """Call `subprocess.Popen` with the words that contain `secret` hidden. If the kernel forbids tracing a child, they
    are visible and a warning is logged."""
    hidden = {index: word for index, word in enumerate(words) if secret in word}
    # If tracing is lost midway, the program must reject the shown text instead of taking it for the secret.
    shown = [f"{word.partition('=')[0]}=unseen" if index in hidden else word for index, word in enumerate(words)]
    variables = {f"{VARIABLE}{index}": word for index, word in hidden.items()}
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace  # loaded before the fork
    ptrace.restype, ptrace.argtypes = ctypes.c_long, [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

    def in_child() -> None:
        preexec_fn()
        if ptrace(_TRACED_BY_PARENT, 0, None, None) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")

    process = None
    try:
        process = subprocess.Popen(shown, env=env | variables, preexec_fn=in_child, **settings)  # noqa: PLW1509
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        _point(process.pid, hidden)
        if ptrace(_DETACH, process.pid, None, None) != 0:
            raise OSError(ctypes.get_errno(), "ptrace")
    except (subprocess.SubprocessError, OSError) as error:
        if process is not None:
            with process:  # closes its pipes
                process.kill()
        _log.warning("other users of this machine can read the secret on the command line of %s: %s", words[0], error)
        return subprocess.Popen(words, env=env, preexec_fn=preexec_fn, **settings)  # noqa: PLW1509
    return process


def _point(pid: int, hidden: dict[int, str]) -> None:
    """Point these entries of a stopped program's `argv` at its environment."""
    stack = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_START_OF_STACK])
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:

        def pointer(index: int) -> int:
            memory.seek(stack + index * _WORD)
            return int(struct.unpack("P", memory.read(_WORD))[0])

        place = pointer(0) + 2  # after the count, `argv` and its final null
        while (address := pointer(place)) != 0:
            memory.seek(address)
            name, _, _ = memory.read(len(VARIABLE) + len(str(max(hidden))) + 1).partition(b"=")
            index = name.decode(errors="replace").removeprefix(VARIABLE)
            if name.startswith(VARIABLE.encode()) and index.isdigit() and int(index) in hidden:
                memory.seek(stack + (1 + int(index)) * _WORD)
                memory.write(struct.pack("P", address + len(name) + 1))
            place += 1

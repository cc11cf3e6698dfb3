"""Renders templates and tokenizes texts one after another, so that the front's interpreter, memory and processor stay
free: `python -m covey.front.openai.worker PROMPT_BYTES SECONDS`.

A question and an answer are each a length of four bytes and a pickle. Both ends are Covey's own.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from covey.front import failures
from covey.front.log import to_stderr
from covey.front.openai.text_processor import TextProcessor, WorkerReply

LENGTH = struct.Struct("<I")
LONG_BYTES = 64 << 10  # questions beyond this make the worker give memory back: a text needs 300 times its length
NICE = 5  # of the worker for long texts: it gets a third of a contested processor
_PR_SET_PDEATHSIG = 1


def answered(texts: dict[str, TextProcessor], prompt_bytes: int, seconds: float, question: bytes) -> WorkerReply:
    folder, act, given = pickle.loads(question)
    if folder not in texts:
        texts[folder] = TextProcessor(folder, prompt_bytes, seconds)
        texts[folder].read()  # before the first caller waits
    try:
        return WorkerReply(getattr(texts[folder], act)(*given))
    except Exception as error:
        return WorkerReply(error=failures.public(f"a text's {act}", error))


def main(arguments: list[str]) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one text at a time, in this thread
    if "--nice" in arguments:
        os.nice(NICE)
        with suppress(OSError):  # on kernels that share processors by session: this worker has its own
            Path("/proc/self/autogroup").write_text(str(NICE))
    to_stderr()
    texts: dict[str, TextProcessor] = {}
    prompt_bytes, seconds = int(arguments[0]), float(arguments[1])
    asked, told = sys.stdin.buffer, sys.stdout.buffer
    while question := _next(asked):
        answer = pickle.dumps(answered(texts, prompt_bytes, seconds, question), pickle.HIGHEST_PROTOCOL)
        told.write(LENGTH.pack(len(answer)) + answer)
        told.flush()
        if len(question) > LONG_BYTES and hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)


def _next(asked: BinaryIO) -> bytes:
    """Read the next question; empty after the front has ended."""
    head = asked.read(LENGTH.size)
    return asked.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""


if __name__ == "__main__":
    main(sys.argv[1:])

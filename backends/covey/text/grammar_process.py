"""A process of its own that compiles grammars which nobody has compiled before: none of them can hold or end another.

It starts with the first of them and reads the tokenizer once. Each is compiled by a child that it forks: the child ends
after so much time of a processor, which does not depend on load, or where it wants so much more memory. What is refused
is decided by limits that depend on the grammar alone (`grammar.compiled`); these two are the last guard.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from covey.contracts.errors import Overloaded, SettingError
from covey.process import interpreter
from covey.text import grammar

PROCESSOR_SECONDS = 1.0  # of one grammar
MEMORY = 512 << 20  # of one grammar
NICE = 10  # the rounds go first where there are few cores
ANSWER_SECONDS = 20.0  # on a machine that is far too busy


class Compiler:
    """This process's end. Any thread; one grammar at a time."""

    def __init__(self, folder: str, vocab_size: int) -> None:
        """`folder` has the tokenizer."""
        self._model = {"folder": folder, "vocab_size": vocab_size}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Connection | None = None  # to it

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def compiled(self, name: str, text: str, end_ids: tuple[int, ...]) -> str:
        """See `grammar.compiled`, which may raise ValueError; raises Overloaded where it was given up."""
        asked = self._model | {"name": name, "text": text, "end_ids": end_ids}
        with self._lock:
            try:
                answer = self._ask(json.dumps(asked).encode())
            except (OSError, EOFError) as error:
                self._end()
                raise Overloaded(f"{name}: the process that compiles grammars is away ({error}); try again") from None
        if "allowed" in answer:
            raise ValueError(answer["allowed"])
        if "grammar" not in answer:
            raise Overloaded(f"{name}: given up when it was compiled, {answer['guard']}; try again with a simpler one")
        return str(answer["grammar"])

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ask(self, asked: bytes) -> dict[str, str]:
        if self._line is None or self._process is None or self._process.poll() is not None:
            self._end()
            self._line, other = Pipe()
            with other:
                words = [interpreter.python(), "-m", "covey.text.grammar_process", str(other.fileno())]
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    pass_fds=[other.fileno()],
                    env=interpreter.environment(),
                    start_new_session=True,  # what a terminal says to whoever started it is not said to it
                )
        self._line.send_bytes(asked)
        if not self._line.poll(ANSWER_SECONDS):
            raise EOFError(f"no answer within {ANSWER_SECONDS:g} s")
        found: dict[str, str] = json.loads(self._line.recv_bytes())
        return found

    def _end(self) -> None:
        if self._line is not None:
            self._line.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._line = self._process = None


# ---- the process ----------------------------------------------------------------------------------------------------


def main(descriptor: int) -> None:
    line = Connection(descriptor)
    with suppress(EOFError, OSError):  # nobody is there any more
        while True:
            line.send_bytes(_answer(json.loads(line.recv_bytes())))


def _answer(asked: dict[str, object]) -> bytes:
    try:
        tokenizer = grammar.tokenizer_of(asked["folder"], asked["vocab_size"], tuple(asked["end_ids"]))  # type: ignore
    except SettingError as error:
        return json.dumps({"allowed": f"nothing with this target: {error}"}).encode()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            with os.fdopen(writing, "wb") as pipe:
                _bound()
                pipe.write(json.dumps(_compiled(asked, tokenizer)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return found if found and not status else json.dumps({"guard": _reason(status)}).encode()


def _compiled(asked: dict[str, object], tokenizer: object) -> dict[str, str]:
    try:
        return {"grammar": grammar.compiled(str(asked["name"]), str(asked["text"]), tokenizer)}  # type: ignore
    except ValueError as error:
        return {"allowed": str(error)}


def _bound() -> None:
    os.nice(NICE)  # not while the tokenizer is read: on busy processors that would take longer than anybody waits
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})  # as a thread of another program may have blocked it
    signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)  # by default its signal ends the process


def _reason(status: int) -> str:
    if status == -signal.SIGPROF:
        return f"after {PROCESSOR_SECONDS:g} s of a processor"
    return f"with at most {MEMORY >> 20} MiB of memory"


if __name__ == "__main__":
    main(int(sys.argv[1]))

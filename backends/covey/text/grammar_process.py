"""A separate process that compiles new grammars, so that no grammar can block or crash the server.

It starts with the first grammar and reads the tokenizer once. It forks a child for each grammar. The child is killed
after `PROCESSOR_SECONDS` of processor time, which does not depend on load, or if it needs more than `MEMORY`. Refusals
come from limits that depend only on the grammar (`grammar.compiled`); these two are the last guard.
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

PROCESSOR_SECONDS = 1.0  # for one grammar
MEMORY = 512 << 20  # additional bytes for one grammar
NICE = 10  # the engine's rounds go first if cores are few
ANSWER_SECONDS = 20.0  # timeout, for a machine that is far too busy


class Compiler:
    """The server's side. Thread-safe; compiles one grammar at a time."""

    def __init__(self, folder: str, vocab_size: int) -> None:
        """`folder` contains the tokenizer."""
        self._model = {"folder": folder, "vocab_size": vocab_size}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Connection | None = None  # to the process

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def compiled(self, name: str, text: str, end_ids: tuple[int, ...]) -> str:
        """Return the grammar as `grammar.compiled` does, or raise its ValueError. Raises Overloaded if compilation was
        given up."""
        asked = self._model | {"name": name, "text": text, "end_ids": end_ids}
        with self._lock:
            try:
                answer = self._ask(json.dumps(asked).encode())
            except (OSError, EOFError) as error:
                self._end()
                raise Overloaded(f"{name}: the grammar compiler does not answer ({error}); try again") from None
        if "allowed" in answer:
            raise ValueError(answer["allowed"])
        if "grammar" not in answer:
            raise Overloaded(f"{name}: compilation was given up {answer['guard']}; try again with a simpler grammar")
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
                    start_new_session=True,  # a terminal's signals must not reach it
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
    with suppress(EOFError, OSError):  # the server has ended
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
    os.nice(NICE)  # only now: on busy processors, a nice process would read the tokenizer too slowly
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})  # a parent may have blocked it
    signal.setitimer(signal.ITIMER_PROF, PROCESSOR_SECONDS)  # by default its signal ends the process


def _reason(status: int) -> str:
    if status == -signal.SIGPROF:
        return f"after {PROCESSOR_SECONDS:g} s of a processor"
    return f"with at most {MEMORY >> 20} MiB of memory"


if __name__ == "__main__":
    main(int(sys.argv[1]))

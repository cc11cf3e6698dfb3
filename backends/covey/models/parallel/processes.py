"""The processes of ranks 1 and up, as rank 0 sees them: started, told, watched and ended.

All hold the reading end of one pipe that nobody writes to, and the kernel signals them when its other end is closed:
by rank 0, or at its death, whatever they wait for then. (What Linux offers for a parent's death comes at the end of the
*thread* that started a process, and a thread of theirs that watches would have to wait for the interpreter's lock.)

Messages are pickled: both ends of each pair of sockets are this server's own. They are no broadcast, which would run
into its time limit while it waits for the next request; a socket waits for ever, and ends when its other end's process
ends.
"""

from __future__ import annotations

import os
import pickle
import select
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from covey.contracts.errors import RankDied
from covey.process import interpreter

_OF_OTHER_LAUNCHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SECONDS = 10.0  # to end in
_MOMENT = 1.0


class Followers:
    """Ranks 1 to `size` - 1; `order` is what each is told first, beside its rank. `lost` is called once, by another
    thread, when one of them ends before `close`."""

    def __init__(self, size: int, order: dict[str, Any], lost: Callable[[], None]) -> None:
        # They meet here, and nobody else may enter; the number is for who removes what a killed process has left.
        self.folder = Path(tempfile.mkdtemp(prefix=f"covey-ranks-{os.getpid()}-"))
        self._size, self._lost = size, lost
        self._lives, self._lifeline = os.pipe()
        self._channels: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._watch: threading.Thread | None = None
        self._closing = False
        try:
            for rank in range(1, size):
                self._start(rank, order)
        except BaseException:
            self.close()
            raise
        self._watch = threading.Thread(target=self._wait_for_an_end, name="covey-ranks", daemon=True)
        self._watch.start()

    @property
    def processes(self) -> list[int]:
        return [process.pid for process in self._processes]

    def wait_loaded(self) -> None:
        """Wait until each process has its weights. Raises the error of one that cannot."""
        for rank, channel in enumerate(self._channels, 1):
            try:
                answer = channel.recv()
            except (EOFError, OSError):
                raise self._gone(rank) from None
            if answer is not None:
                raise answer

    def tell(self, message: object) -> None:
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        for rank, channel in enumerate(self._channels, 1):
            try:
                channel.send_bytes(data)
            except OSError as error:
                raise self._gone(rank) from error

    def death(self) -> RankDied | None:
        """Return the error to raise if a rank has ended, which may show a moment after its sockets closed."""
        until = time.monotonic() + _MOMENT
        while True:
            for rank, process in enumerate(self._processes, 1):
                if process.poll() is not None:
                    return self._gone(rank)
            if time.monotonic() > until:
                return None
            time.sleep(_MOMENT / 50)

    def close(self) -> None:
        """End them; returns when they are gone. May be called again."""
        self._closing = True
        lifeline, self._lifeline = self._lifeline, -1
        if lifeline >= 0:
            os.close(lifeline)
            os.close(self._lives)
        for process in self._processes:
            try:
                process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._watch is not None:
            self._watch.join(_SECONDS)  # it sees the last of them end
        for channel in self._channels:
            channel.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _gone(self, rank: int) -> RankDied:
        try:
            end = f"ended with status {self._processes[rank - 1].wait(_MOMENT)}"
        except subprocess.TimeoutExpired:
            end = "does not listen any more"
        return RankDied(f"rank {rank} of {self._size} {end}; the log has its reason")

    def _start(self, rank: int, order: dict[str, Any]) -> None:
        own, others = Pipe()
        with others:
            passed = (others.fileno(), self._lives)
            command = [interpreter.python(), "-m", "covey.models.parallel", *map(str, passed)]
            env = interpreter.environment(_OF_OTHER_LAUNCHERS)
            self._processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env, pass_fds=passed))
        self._channels.append(own)
        try:
            own.send(order | {"rank": rank, "size": self._size, "meeting": str(self.folder)})
        except OSError as error:
            raise self._gone(rank) from error

    def _wait_for_an_end(self) -> None:
        ends = select.poll()
        for channel in list(self._channels):
            ends.register(channel, 0)  # hang-up is always reported
        ends.poll()
        if not self._closing:
            self._lost()

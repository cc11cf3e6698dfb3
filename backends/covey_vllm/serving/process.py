"""vLLM's process, which another Python runs, and the line to it (`covey_vllm.messages`).

Both packages are found there by links in a folder of this server: the other end is always of the same version, and
nothing needs to be installed where vLLM is.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import covey
import covey_client
import covey_vllm
from covey.process.private import private_folder
from covey.tritonio import link
from covey.tritonio.link import Peer
from covey.wire import token
from covey.wire.frames import Message
from covey_client import secret
from covey_vllm.serving.deployment import Deployment

LEAVE_SECONDS = 5.0  # for the process to end when its line is closed
# Of the launcher's environment: what is for this Python's libraries, and what others must not know.
NOT_PASSED = (
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"),
    *(secret.VARIABLE, secret.FILE_VARIABLE, token.VARIABLE),
)


class EngineProcess:
    """Owns the process. It ends when its line is closed, also where this one is killed."""

    def __init__(
        self, deployment: Deployment, model: str, received: Callable[[Message], None], ended: Callable[[], None]
    ) -> None:
        """`model` is whose engine this is. Both others are called in a thread of the line, `ended` once and last."""
        packages = _packages(model)
        environment = {name: value for name, value in os.environ.items() if name not in NOT_PASSED}
        near, far = socket.socketpair()
        with far:
            self._process = subprocess.Popen(
                [deployment.python, "-m", "covey_vllm.engine", str(far.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(far.fileno(),),
                cwd=packages,
                env=environment | {"PYTHONPATH": str(packages)} | deployment.environment,
            )
        self._peer = Peer(Connection(near.detach()), lambda _peer, message: received(message), lambda _peer: ended())
        threading.Thread(target=self._watch, name="vllm", daemon=True).start()

    def send(self, message: Message) -> None:
        """Raises PortError where the process has ended."""
        self._peer.send(message)

    def close(self) -> None:
        """End the process, and wait until it has."""
        self._peer.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE_SECONDS)
        self._process.kill()
        self._process.wait()

    def _watch(self) -> None:
        """A process of its own may hold its end of the line."""
        self._process.wait()
        self._peer.close()


def _packages(model: str) -> Path:
    """Return a folder with links to Covey's packages; the launcher removes it with the server's others."""
    folder = link.address(f"{model}-packages", os.getppid())
    private_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    for package in (covey, covey_client, covey_vllm):
        path = Path(str(package.__file__)).parent
        with suppress(FileExistsError):
            (folder / path.name).symlink_to(path)
    return folder

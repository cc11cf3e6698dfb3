"""Puts a drafter on a host of its own, at the end of a cable that can be pulled out: a network namespace of this
machine."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from pathlib import Path

from covey.server import Options
from loadtest.hosts import hosts

REMOTE = "draft_remote"
PROFILE = """
models = ["draft_chat"]
[star]
callers = "{callers}"
admission = false
"""


class Far:
    """Owns a drafter's server on a host of its own. Raises what a server raises that does not start; OSError if this
    machine has no such hosts."""

    def __init__(self, out: Path) -> None:
        self._stack = ExitStack()
        try:
            self._host, *_ = hosts(1, self._stack)
            if not self._host.apart:
                raise OSError("network namespaces cannot be made here")
            secret = secrets.token_hex(16)
            self._secret = private(out / "far.secret", secret + "\n")
            profile = out / "far.toml"
            profile.write_text(PROFILE.format(callers=private(out / "far.callers", f"near {secret}\n")))
            ports = [self._host.free_port() for _ in range(3)]
            options = Options("", *ports, profile=str(profile), stop_seconds=3.0, drain_seconds=1.0)
            self._server = self._host.server(options, out / "far.log")
            self._stack.callback(self._host.run, self._server.kill)
        except BaseException:
            self._stack.close()
            raise

    @property
    def star(self) -> str:
        """Return the part of a profile that says where the drafter is."""
        address = f"{self._host.address}:{self._server.options.grpc_port}"
        return f'[star]\nservers = ["{REMOTE}={address}/draft_chat"]\nsecret = "{self._secret}"\n'

    def cut(self) -> None:
        self._host.plug(there=False)

    def mend(self) -> None:
        self._host.plug(there=True)

    def end(self) -> None:
        self._stack.close()


def private(path: Path, text: str) -> Path:
    """Write a file of this user alone."""
    path.unlink(missing_ok=True)
    path.touch(0o600)
    path.write_text(text)
    return path.resolve()

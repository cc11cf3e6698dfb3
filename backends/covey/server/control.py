"""The few HTTP calls that a launcher and the controller make to their server: readiness, index, load, unload."""

from __future__ import annotations

import http.client
import json
import os
import time
from dataclasses import dataclass
from typing import Any

from covey.errors import CoveyError
from covey.server import processes
from covey.server.command import HTTP_VARIABLE
from covey_client import secret

USUAL_ADDRESS = "127.0.0.1:8000"  # Triton's own, where no launcher said another
LOAD_SECONDS = 600.0
RELEASE_SECONDS, LOOK_SECONDS = 30.0, 0.02  # for the requests that a model still has; between looks whether it ended


class ControlError(CoveyError):
    """The server refused a control call or could not be asked."""


@dataclass(frozen=True)
class Control:
    """Model control of the server at `host:port`."""

    host: str
    port: int
    secret: str = ""
    seconds: float = 5.0

    def ready(self) -> bool:
        """Whether the server answers and every loaded model is ready; False also when nobody answers."""
        try:
            return self._call("GET", "/v2/health/ready")[0] == 200
        except ControlError:
            return False

    def states(self) -> dict[str, str]:
        """Model -> READY, LOADING, UNLOADING, UNAVAILABLE; "" for one that was never loaded."""
        rows: list[dict[str, Any]] = self._checked("POST", "/v2/repository/index")
        return {str(row["name"]): str(row.get("state", "")) for row in rows}

    def unload(self, model: str) -> None:
        """Ask for it; returns before requests in flight have ended."""
        self._checked("POST", f"/v2/repository/models/{model}/unload")

    def load(self, model: str) -> None:
        """Load it, or load it again; blocks until it is ready."""
        self._checked("POST", f"/v2/repository/models/{model}/load")

    def _checked(self, method: str, path: str) -> Any:
        status, body = self._call(method, path)
        if status != 200:
            raise ControlError(f"{path} answered {status}: {body.decode(errors='replace')[:200]}")
        return json.loads(body) if body else None

    def _call(self, method: str, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.seconds)
        try:
            connection.request(method, path, headers={secret.HEADER: self.secret} if self.secret else {})
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ControlError(f"{path}: {error}") from error
        finally:
            connection.close()


def release(control: Control, model: str) -> None:
    """For a process of this server: unload a model, and return when its processes have ended and their memory is
    free."""
    control.unload(model)
    deadline = time.monotonic() + RELEASE_SECONDS
    while processes.by_model(os.getppid()).get(model):
        if time.monotonic() > deadline:
            raise ControlError(f"{model} has not ended {RELEASE_SECONDS:g} s after it was unloaded")
        time.sleep(LOOK_SECONDS)


def of_this_server() -> Control:
    """For a model's process: control of the server that it belongs to."""
    host, _, port = os.environ.get(HTTP_VARIABLE, USUAL_ADDRESS).rpartition(":")
    return Control(host, int(port), os.environ.get(secret.VARIABLE, ""), LOAD_SECONDS)

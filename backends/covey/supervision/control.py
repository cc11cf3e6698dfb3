"""Model control over HTTP for the launcher and the orchestrator: readiness, index, load, unload.

`pb_utils.load_model` is no alternative: it freezes every thread of the calling process, and a failed load can take all
of tritonserver 24.10 down. Nor is a BLS call to a model: if the model dies before it answers, the caller waits for
ever.
"""

from __future__ import annotations

import http.client
import json
import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from covey.contracts.errors import CoveyError
from covey.supervision import processes
from covey_client import secret

HTTP_VARIABLE = "COVEY_HTTP"  # the launcher sets it to the address at which its server's processes reach the server
USUAL_ADDRESS = "127.0.0.1:8000"  # Triton's default, used without a launcher
LOAD_SECONDS = 600.0
READY, LOADING, UNLOADED, FAILED = "READY", "LOADING", "UNAVAILABLE", "FAILED"
RELEASE_SECONDS, LOOK_SECONDS = 30.0, 0.02  # timeout of the requests that a model still has; between looks at it
DEAD_SECONDS, WAIT_SECONDS = 10.0, 0.5  # for Triton to notice that a loading process has ended; between looks at it


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
        """Return whether the server answers and every loaded model is ready."""
        try:
            return self._call("GET", "/v2/health/ready")[0] == 200
        except ControlError:
            return False

    def states(self) -> dict[str, str]:
        """Return each model's state: READY, LOADING, UNLOADING, or UNAVAILABLE after an unload; FAILED if it became
        unavailable for another reason; "" if it was never loaded."""
        rows: list[dict[str, Any]] = self._checked("POST", "/v2/repository/index")
        return {str(row["name"]): _state(row) for row in rows}

    def answered(self, model: str) -> int:
        """Return how many requests a model has answered since it was loaded, failures included."""
        counts = self._checked("GET", f"/v2/models/{model}/stats")["model_stats"][0]["inference_stats"]
        return int(counts["success"]["count"]) + int(counts["fail"]["count"])

    def unload(self, model: str) -> None:
        """Unload the model; returns before requests in flight have ended."""
        self._checked("POST", f"/v2/repository/models/{model}/unload")

    def load(self, model: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Load or reload the model. Blocks until it is ready, or `meanwhile`, called every WAIT_SECONDS, raises."""
        self._checked("POST", f"/v2/repository/models/{model}/load", meanwhile)

    def _checked(self, method: str, path: str, meanwhile: Callable[[], None] = lambda: None) -> Any:
        status, body = self._call(method, path, meanwhile)
        if status != 200:
            raise ControlError(f"{path} answered {status}: {body.decode(errors='replace')[:200]}")
        return json.loads(body) if body else None

    def _call(self, method: str, path: str, meanwhile: Callable[[], None] = lambda: None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.seconds)
        try:
            connection.request(method, path, headers={secret.HEADER: self.secret} if self.secret else {})
            said, until = select.poll(), time.monotonic() + self.seconds
            said.register(connection.sock, select.POLLIN)
            while not said.poll(1000 * min(WAIT_SECONDS, self.seconds)):
                if time.monotonic() > until:
                    raise TimeoutError("timed out")
                meanwhile()
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ControlError(f"{path}: {error}") from error
        finally:
            connection.close()


def _state(row: dict[str, Any]) -> str:
    failed = row.get("state") == UNLOADED and row.get("reason") != "unloaded"
    return FAILED if failed else str(row.get("state", ""))


class InnerControl(Control):
    """Model control from one of the server's own processes, which can list the processes of the models."""

    def load(self, model: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Load the model. Raises ControlError if it is already loading, or if its process ends without Triton
        noticing."""
        looks = 0

        def dead() -> None:
            nonlocal looks
            meanwhile()
            looks = 0 if processes.by_model(os.getppid()).get(model) else looks + 1
            if looks * WAIT_SECONDS >= DEAD_SECONDS:
                raise ControlError(f"the process of {model} ended while it was loading, and the server has not noticed")

        self._idle(model)
        super().load(model, dead)

    def unload(self, model: str) -> None:
        """Unload the model. Raises ControlError while it is loading, because Triton would block until it is loaded."""
        self._idle(model)
        super().unload(model)

    def release(self, model: str) -> None:
        """Unload a model, and return after its processes have ended and freed their memory."""
        self.unload(model)
        deadline = time.monotonic() + RELEASE_SECONDS
        while processes.by_model(os.getppid()).get(model):
            if time.monotonic() > deadline:
                raise ControlError(f"{model} has not ended {RELEASE_SECONDS:g} s after it was unloaded")
            time.sleep(LOOK_SECONDS)

    def _idle(self, model: str) -> None:
        if self.states().get(model) == LOADING:
            raise ControlError(f"{model} is being loaded")


def of_this_server() -> InnerControl:
    """Return control of the server that this model's process belongs to."""
    host, _, port = os.environ.get(HTTP_VARIABLE, USUAL_ADDRESS).rpartition(":")
    return InnerControl(host, int(port), os.environ.get(secret.VARIABLE, ""), LOAD_SECONDS)

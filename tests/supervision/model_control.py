"""Stands in for a server's model control: its models' processes are real, and this process is their parent."""

from __future__ import annotations

import subprocess
import sys
import threading

from covey.supervision.control import FAILED, LOADING, READY, UNLOADED, ControlError

SECONDS = 20.0
SLEEP = "import time; time.sleep(600)"


class Triton:
    """As with Triton, a model is ready however its process ended, and one that was killed is waited for when its model
    is unloaded, or never (`waits`)."""

    def __init__(self, *models: str) -> None:
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.said: dict[str, str] = {}
        self.calls: list[tuple[str, str]] = []
        self.failures = 0
        self.waits = True
        self.notices = True  # that a process which it loads has ended
        self.hold = threading.Event()  # loads end when it is set
        self.hold.set()
        self.began = threading.Semaphore(0)
        self.loaded = threading.Semaphore(0)
        self.zombies: list[subprocess.Popen[bytes]] = []
        for model in models:
            self.run(model)
            self.said[model] = READY

    def run(self, model: str) -> None:
        self.running[model] = subprocess.Popen([sys.executable, "-c", SLEEP, f"{model}_0_0"])

    def kill(self, model: str) -> None:
        self.running[model].kill()

    def states(self) -> dict[str, str]:
        return dict(self.said)

    def load(self, model: str) -> None:
        self.calls.append(("load", model))
        self.said[model] = LOADING
        if self.failures:
            self.failures -= 1
            self.said[model] = FAILED
            raise ControlError("no memory")
        self.run(model)
        self.began.release()
        process = self.running[model]
        while not self.hold.wait(0.01):
            if self.notices and process.poll() is not None:
                self.said[model] = FAILED
                raise ControlError("its process ended")
        self.said[model] = READY
        self.loaded.release()

    def unload(self, model: str) -> None:
        self.calls.append(("unload", model))
        self.said[model] = UNLOADED
        if self.waits:
            self.running[model].kill()
            self.running[model].wait()
        else:
            self.zombies.append(self.running[model])

    def close(self) -> None:
        for process in (*self.running.values(), *self.zombies):
            process.kill()
            process.wait()

"""The chart's pods as this machine can have them: a network namespace of its own for each, and file systems mounted as
the pod's are, with the image's files and everything else read-only. Commands and environment are the chart's."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.docker.charts import CHART, of_kind, render
from tests.e2e.hosts import Host, hosts

ROOT = CHART.parents[1]
SECRET = "a secret of sixteen characters and more"
# What kubelet and the image's layers do.
INSIDE = r"""
set -e
opt=$1 profiles=$2; shift 2
for place in /run /var/lib /opt; do mount -t tmpfs tmpfs $place; done
mkdir -m 2777 /var/lib/covey
mkdir -p /run/secrets/covey /opt/covey /run/profiles
cp "$opt"/* /opt/covey/
cp "$profiles"/* /run/profiles/ 2>/dev/null || true
printf %s "$GIVEN_SECRET" > /run/secrets/covey/admin
unset GIVEN_SECRET
touch /run/there
for place in /tmp /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $place; done # over where the files came from
for place in / /opt /run; do mount -o remount,bind,ro $place; done
exec "$@"
"""


class Pod:
    """One pod of the chart's targets; `spec` is its only container's."""

    def __init__(self, host: Host, spec: dict[str, Any], folder: Path, profiles: Path) -> None:
        self.host, self.spec = host, spec
        opt = folder / "opt"
        opt.mkdir(parents=True)
        for name in ("entrypoint", "healthcheck"):
            shutil.copy(ROOT / "docker" / name, opt)
        health = (opt / "healthcheck").read_text().splitlines()
        (opt / "healthcheck").write_text("\n".join([f"#!{sys.executable} -I", *health[1:], ""]))
        words = ["unshare", "--mount", "sh", "-c", INSIDE, "pod", str(opt), str(profiles), "/opt/covey/entrypoint"]
        self._output = folder / "output"
        environment = self._image() | {each["name"]: each["value"] for each in spec["env"]}
        with self._output.open("w") as output:
            self._process = host.run(
                lambda: subprocess.Popen(
                    [*words, *spec["args"]],
                    env=environment | {"GIVEN_SECRET": SECRET},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

        self._network = _network(self._process.pid)
        while self.running and self.run(["test", "-e", "/run/there"]).returncode:
            time.sleep(0.02)

    @property
    def url(self) -> str:
        """Of the front's HTTP."""
        return f"{self.host.address}:8010"

    @property
    def grpc(self) -> tuple[str, int]:
        return self.host.address, 8011

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """As kubelet has it run in the container."""
        words = ["nsenter", "--target", str(self._process.pid), "--mount", "--net", *command]
        return subprocess.run(words, env=self._image(), capture_output=True, text=True, check=False, timeout=60)

    def ready(self) -> bool:
        return self.run(self.spec["readinessProbe"]["exec"]["command"]).returncode == 0

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self, seconds: float) -> int:
        return self._process.wait(seconds)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """All of it at once, as where its node is gone: whoever is in its network."""
        while found := [pid for pid in psutil.pids() if _network(pid) == self._network]:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.poll()
        self._process.wait(60)

    def said(self) -> str:
        return self._output.read_text()

    def _image(self) -> dict[str, str]:
        """What the image sets."""
        return {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": "/tmp",
            "COVEY_BACKENDS": str(ROOT / "backends"),
            "COVEY_MODEL_REPOSITORY": str(ROOT / "model_repository"),
            "COVEY_PROFILES": str(ROOT / "profiles"),
        }


def _network(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""  # gone, or going


@contextlib.contextmanager
def targets(count: int, given: dict[str, Any], folder: Path) -> Iterator[list[Pod]]:
    """So many pods of the chart's targets, with these values; skips where this machine has no hosts for them."""
    with ExitStack() as stack:
        places = hosts(count, stack)
        if not all(place.apart for place in places):
            pytest.skip("pods need network namespaces, which this machine has not")
        objects = render(given)
        [container] = of_kind(objects, "StatefulSet", "covey")["spec"]["template"]["spec"]["containers"]
        profiles = folder / "profiles"
        profiles.mkdir()
        for each in objects:
            if each["kind"] == "ConfigMap":
                for name, text in each["data"].items():
                    (profiles / name).write_text(text)
        made: list[Pod] = []
        try:
            for index, place in enumerate(places):
                made.append(Pod(place, container, folder / f"pod-{index}", profiles))
            yield made
        finally:
            for pod in made:
                pod.kill()  # one that has ended leaves who looks after it

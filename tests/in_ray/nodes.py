"""Runs a Ray cluster whose nodes are on this machine, with an application that `serve run` gives it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import ray
from ray import serve
from ray.cluster_utils import Cluster

from covey_client.status import parse
from covey_ray.engine import free_port

SERVE = Path(sys.executable).with_name("serve")
PATIENCE = 120.0  # seconds, for servers to start
LAUNCHER = re.compile(r"-m covey\.launcher .*--front-http-port (\d+)")
MARK = "COVEY_TEST_CLUSTER"  # in the environment of all of a cluster's processes
# Ray kills a proxy that is not ready after 5 s, which takes longer while other tests use every core.
PROXY = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60"}


@dataclass
class Application:
    """The head has the ingress, each of the other nodes one server (`front` and `server` are what they have of Ray's
    resources)."""

    cluster: Any
    folder: Path
    args: dict[str, Any]
    nodes: list[Any] = field(default_factory=list)  # for servers
    port: int = field(default_factory=free_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self) -> None:
        self.nodes.append(self.cluster.add_node(num_cpus=2, resources={"server": 1}))

    def kill(self, node: Any) -> None:
        """End all of its processes that Ray knows, at once; what a server has of its own is to follow by itself."""
        for process in self.processes(node):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.cluster.remove_node(node, allow_graceful=False)
        self.nodes.remove(node)

    def processes(self, node: Any) -> list[psutil.Process]:
        """Return a node's raylet and workers."""
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        return [raylet, *raylet.children()]

    def servers(self, node: Any = None) -> list[psutil.Process]:
        """Return the launchers that run, on that node or anywhere."""
        found = [each for each in ours(self.folder) if LAUNCHER.search(words(each))]
        return [each for each in found if node is None or each.parent() in self.processes(node)]

    def front(self, node: Any) -> str:
        """Return where that node's server has its front."""
        (server,) = self.servers(node)
        found = LAUNCHER.search(words(server))
        assert found is not None
        return f"127.0.0.1:{found[1]}"

    def figure(self, name: str, node: Any, **labels: str) -> float:
        """Return the sum of a node's metrics with these labels."""
        with urllib.request.urlopen(f"http://{self.front(node)}/metrics", timeout=10) as answer:
            samples = [each for each in parse(answer.read().decode(), name) if each.name == name]
        return sum(each.value for each in samples if labels.items() <= each.labels.items())

    def run(self, replicas: int, **server: Any) -> None:
        """Call `serve run` with `args` as they are now, and so many servers, or as `server` says of their deployment.
        Does not wait for them."""
        front, own = {"front": 0.01}, {"server": 1}
        deployments = [
            {"name": "Server", "ray_actor_options": {"num_cpus": 1, "resources": own}}
            | (server or {"num_replicas": replicas}),
            {"name": "Ingress", "ray_actor_options": {"num_cpus": 0.1, "resources": front}},
        ]
        covey = {"name": "covey", "import_path": "covey_ray:app", "args": self.args, "deployments": deployments}
        options = {"proxy_location": "HeadOnly", "http_options": {"port": self.port}}
        file = self.folder / "covey.yaml"
        file.write_text(json.dumps({**options, "applications": [covey]}))
        command = [str(SERVE), "run", "--non-blocking", "--address", self.cluster.address, str(file)]
        said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert said.returncode == 0, said.stderr

    def settle(self, replicas: int) -> None:
        """Wait until so many servers serve, and no other is there."""

        def settled() -> bool:
            there = serve.status().applications.get("covey")
            if there is None or there.status != "RUNNING":
                return False
            states = there.deployments["Server"].replica_states
            return states == {"RUNNING": replicas} and len(self.servers()) == replicas

        until(settled)

    def broke_off(self) -> int:
        """Return how often an answer broke off, by the log of the ingress."""
        logs = Path(self.cluster.head_node.get_logs_dir_path()) / "serve"
        return sum(path.read_text(errors="replace").count("broke off") for path in logs.glob("*Ingress*.log"))


def until(holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds:.0f} s"
        time.sleep(0.25)  # who asks reads about every process of this machine


@contextlib.contextmanager
def application(
    folder: Path, args: dict[str, Any], count: int, environment: Mapping[str, str] | None = None
) -> Iterator[Application]:
    """Run a cluster with so many nodes for servers, which all have one; nothing of it is left afterwards. `environment`
    is added to that of all of its processes."""
    added = {MARK: str(folder), **PROXY, **(environment or {})}
    os.environ.update(added)
    head = {"num_cpus": 4, "resources": {"front": 1}, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    made = Application(cluster, folder, args)
    try:
        for _ in range(count):
            made.add()
        ray.init(address=cluster.address, namespace="serve", log_to_driver=False)
        made.run(count)
        made.settle(count)
        yield made
        serve.shutdown()
        left = made.servers()
    finally:
        ray.shutdown()
        cluster.shutdown()
        for name in added:
            del os.environ[name]
    assert left == []
    until(lambda: ours(folder) == [], 20.0)


def ours(folder: Path) -> list[psutil.Process]:
    """Return the processes of the cluster of that folder."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == str(folder) and process.pid != os.getpid():
                found.append(process)
    return found


def words(process: psutil.Process) -> str:
    """Return its command line; empty if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""

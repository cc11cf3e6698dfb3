"""The real target's process: which of its threads compute."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.launcher import Server
from covey.supervision.processes import named
from covey_client import Client

pytestmark = pytest.mark.e2e


def ran(pid: int) -> dict[str, float]:
    """Seconds that a process's threads have run, those of one name together."""
    found: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = (task / "comm").read_text().strip()
        seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
        found[name] = found.get(name, 0.0) + seconds
    return found


def test_one_thread_and_its_helpers_compute(server: Server) -> None:
    pid, team = named(server.pid)["target"], ("compute", "compute-1")
    before = ran(pid)
    with Client(server.grpc_url) as client:
        for speculation in ("off", "auto"):
            client.generate("User: Do you like films?\nAssistant:", max_tokens=150, speculation=speculation)
    spent = {thread: seconds - before.get(thread, 0.0) for thread, seconds in ran(pid).items()}
    assert sum(spent.pop(name) for name in team) > sum(spent.values()), "what the others do is messages"

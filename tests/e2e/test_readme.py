"""Every command block of READMEs and docs that is marked for it runs as it stands, only against the test's own ports.

`<!-- test: server -->` before a block: run it against a running server. A block without a mark must be of a kind that
is run elsewhere: the two commands of the start are what the test run itself comes from. `tests/test_extending.py` runs
the blocks of docs/extending.md.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from covey.launcher import Server
from covey.launcher.front import Front
from covey_client import status
from tests.waiting import until

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(?:<!-- test: (?P<mark>[\w ]+) -->\n)?```(?P<kind>bash|python)\n(?P<body>.*?)```", re.DOTALL)
EXEMPT = ("make serve", "docker", "podman")
PAGES = [page for page in sorted(ROOT.glob("docs/*.md")) if page.stem != "extending"]


def blocks() -> list[tuple[str, str, str, str]]:
    found = []
    for path in [ROOT / "README.md", *sorted(ROOT.glob("*/README.md")), *PAGES]:
        for index, match in enumerate(BLOCK.finditer(path.read_text(encoding="utf-8"))):
            name = f"{path.relative_to(ROOT)}-{index}"
            found.append((name, match["mark"] or "", match["kind"], match["body"]))
    return found


@pytest.fixture(scope="module")
def server(crowded: Server) -> Server:
    return crowded


@pytest.mark.parametrize(("name", "mark", "kind", "body"), blocks(), ids=[block[0] for block in blocks()])
def test_block_runs(server: Server, front: Front, name: str, mark: str, kind: str, body: str) -> None:
    if mark != "server":
        assert body.lstrip().startswith(EXEMPT) or mark.startswith("not run"), f"{name}: neither run nor exempt"
        return
    until(lambda: status.read(server.http_url).ready, 60)  # a block before this one may have had a drafter loaded
    for port, now in ((8000, server.http_url), (8001, server.grpc_url), (8002, server.metrics_url.split("/")[2])):
        body = body.replace(f"localhost:{port}", now)
    body = body.replace("localhost:8010", front.http_url)
    body = body.replace(".venv/bin/covey", f"{Path(sys.executable).parent}/covey")
    metrics = server.metrics_url.split("/")[2]
    body = body.replace("covey status", f"covey status --url {server.http_url} --metrics-url {metrics}")
    body = body.replace("covey drafters", f"covey drafters --url {server.http_url}")
    words = ["bash", "-euo", "pipefail", "-c", body] if kind == "bash" else [sys.executable, "-c", body]
    environment = {**os.environ, "COVEY_URL": server.grpc_url}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{name}: {done.stdout[-500:]}\n{done.stderr[-1500:]}"
    assert '"error"' not in done.stdout, done.stdout

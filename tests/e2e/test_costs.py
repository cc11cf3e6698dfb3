"""A server that starts from a named cost table, and what one measures and keeps."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from covey.launcher import FREE_PORTS, Options, Server
from covey.planner.cost_table import load_costs
from covey_client import Client
from covey_client.cli import main
from covey_client.costs.table import CostTable
from covey_client.reports import Reports
from covey_client.status import read
from tests.e2e.serving import served, total
from tests.waiting import until

pytestmark = pytest.mark.e2e

PROMPT = "User: Do you like films?\nAssistant:"
UNTOLD = """
models = ["target", "covey", "draft_emulated"]
[target]
kind = "emulated"
kv_memory_mb = 512
[emulated]
costs = "emulated-7b-24g"
acceptance = ["draft_emulated:0.6"]
[speculation]
drafters = ["draft_emulated"]
"""


@contextlib.contextmanager
def unloaded(server: Server, model: str) -> Iterator[None]:
    control = replace(server.control, seconds=60.0)
    control.unload(model)
    until(lambda: control.states()[model] == "UNAVAILABLE")
    yield
    control.load(model)


def test_the_first_choice_is_by_the_table_that_is_named(tmp_path: Path) -> None:
    costs, counts = tmp_path / "measured.json", ((1, 1), (1, 3), (8, 8), (8, 24))
    verify = tuple((rows, tokens, 0.05) for rows, tokens in counts)
    draft = {"draft_emulated": ((1, 2, 0.004), (8, 2, 0.004))}
    overhead, plain = ((1, 0.003), (8, 0.003)), ((1, 0.053), (8, 0.053))
    CostTable("measured", "made up", verify, overhead, draft, plain=plain).save(costs)
    with served(f'{UNTOLD}costs = "{costs}"\n', tmp_path) as fresh:
        with Client(fresh.grpc_url) as client:
            client.generate(PROMPT, max_tokens=60)
        first = Reports(fresh.http_url).decisions(256)["decisions"][0]
        assert first["predicted"][0] == pytest.approx(0.053, rel=0.5), "known before anything was measured here"


ANEW, BUSY = "cost curves measured in", "the machine was busy with other work"
ATTEMPTS = 4


@contextlib.contextmanager
def _quiet(given: Options) -> Iterator[Server]:
    """A server that measured while this machine did nothing else: what it measured otherwise it does not keep."""
    assert given.log_file is not None
    for attempt in range(ATTEMPTS):
        with Server(replace(given, log_file=given.log_file.with_suffix(f".{attempt}"))) as server:
            if BUSY not in server.log_text():
                yield server
                return
    pytest.fail(f"this machine was busy at each of {ATTEMPTS} starts")


def test_it_is_ready_when_it_has_measured_and_keeps_what_it_measured(tmp_path: Path) -> None:
    """An emulated device: its times hardly depend on what else this machine does."""
    profile = tmp_path / "untold.toml"
    profile.write_text(UNTOLD)
    kept = tmp_path / "kept"
    given = Options(**FREE_PORTS, profile=str(profile), log_file=tmp_path / "tritonserver.log", kept=kept)
    with _quiet(given) as first:
        assert ANEW in first.log_text(), "before anybody was told that it is ready"
        (curves,) = (kept / "curves").iterdir()
        table = load_costs(curves)
        assert {rows for rows, _ in table.plain} >= {1, 4, 16}
        with Client(first.grpc_url) as client:
            client.generate(PROMPT, max_tokens=40)
            decision = Reports(first.http_url).decisions(256)["decisions"][0]
            assert decision["predicted"], "known before anything was served"
            with unloaded(first, "covey"):
                pass
            client.generate(PROMPT, max_tokens=4)
        assert first.log_text().count(ANEW) == 1, "a reload does not measure"


def test_decisions_are_explained(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    with Client(server.grpc_url) as client:
        client.generate(PROMPT, max_tokens=40)
    assert main(["status", "--url", server.http_url, "--decisions", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "policy adaptive"
    assert len(lines) == 4
    assert all("ms/token predicted/observed" in line for line in lines[1:])
    assert main(["status", "--url", server.http_url, "--decisions", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["decisions"][0]["rows"] == 1
    assert main(["status", "--url", server.http_url, "--decisions", "0"]) == 2


def test_choices_are_counted_in_metrics(server: Server) -> None:
    with Client(server.grpc_url) as client:
        client.generate(PROMPT, max_tokens=40)
    until(lambda: total(server, "covey_planner_observed_seconds_total") > 0)
    samples = read(server.http_url, server.metrics_url.split("/")[2]).samples
    rounds = [sample for sample in samples if sample.name == "covey_planner_rounds_total"]
    assert {"depth", "why"} <= set(rounds[0].labels)

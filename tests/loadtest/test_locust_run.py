"""Locust against the real tritonserver, in processes of its own: it patches what it is imported into."""

from __future__ import annotations

import json
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import covey
from covey.launcher import Server
from loadtest import arrivals, records
from loadtest.arrivals import Arrival
from loadtest.options import Plan, command_line, plan
from loadtest.records import Record
from loadtest.traffic import Traffic
from tests.waiting import until

Running = tuple[Server, Any]
REPOSITORY = Path(covey.__file__).parents[2]
LOCUST = ["-f", "loadtest/locustfile.py", "--headless", "--only-summary"]

pytestmark = pytest.mark.e2e


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [{"category": "counting", "turns": ["count 5"]}, {"category": "slowly", "turns": ["slow 4"]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def words(server: Server, prompts: Path, *more: str) -> list[str]:
    metrics = server.metrics_url.removeprefix("http://").removesuffix("/metrics")
    where = ["--url", server.grpc_url, "--http-url", server.http_url, "--metrics-url", metrics]
    return [*where, "--prompts", f"specbench:{prompts}", *more]


def until_lines(out: Path) -> None:
    """Until a run has written of a request."""
    lines = out / records.REQUESTS
    until(lambda: lines.is_file() and lines.stat().st_size)


def run(module: Sequence[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", *module, *arguments]
    return subprocess.run(words, check=False, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)


def test_a_run_and_its_report(canned_server: Running, prompts: Path, tmp_path: Path) -> None:
    given = words(canned_server[0], prompts, "--shape", "poisson:20", "--seconds", "3")
    ran = run(["loadtest"], *given, "--out", str(tmp_path), "--name", "mine")
    assert ran.returncode == 0, ran.stderr
    assert f"report: {tmp_path}/mine/report.html" in ran.stdout
    found = records.load(tmp_path / "mine")
    assert found.complete
    assert 30 <= len(found.records) <= 90
    assert {record.level for record in found.records} == {"interactive", "standard", "batch"}
    for record in found.records:
        assert record.finished, record.error
        assert record.output_tokens == {"counting": 5, "slowly": 4}[record.topic]
        assert record.ttft is not None
        assert record.e2e is not None
        assert record.tpot is not None
        assert 0 < record.ttft < record.e2e
        assert record.tpot == pytest.approx((record.e2e - record.ttft) / (record.output_tokens - 1))
        if record.topic == "slowly":  # a client that is late for the first token sees the others come sooner
            assert record.e2e >= 3 * 0.04
    assert statistics.median(record.tpot or 0.0 for record in found.records if record.topic == "slowly") >= 0.04
    again = run(["loadtest"], "--report", str(tmp_path / "mine"), "--compare", str(tmp_path / "mine"))
    assert again.returncode == 0, again.stderr
    assert "compared with" in (tmp_path / "mine" / "report.html").read_text(encoding="utf-8")
    taken = run(["loadtest"], *given, "--out", str(tmp_path), "--name", "mine")
    assert taken.returncode == 2
    assert "mine holds a run already; name another one, or remove it" in taken.stderr
    assert records.load(tmp_path / "mine").records == found.records


def test_an_interrupted_run_reports_what_ran(canned_server: Running, prompts: Path, tmp_path: Path) -> None:
    given = words(canned_server[0], prompts, "--shape", "closed:3", "--seconds", "60", "--out", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-m", "loadtest", *given, "--name", "cut"],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        until_lines(tmp_path / "cut")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 1, err
    assert "the report covers what ran" in err
    assert "report: " in out
    assert "This run was cut short" in (tmp_path / "cut" / "report.html").read_text(encoding="utf-8")


def test_a_run_beside_the_same_load_without_speculation(canned_server: Running, prompts: Path, tmp_path: Path) -> None:
    given = words(canned_server[0], prompts, "--shape", "poisson:8", "--seconds", "3", "--out", str(tmp_path))
    ran = run(["loadtest"], *given, "--name", "mine", "--beside-plain")
    assert ran.returncode == 0, ran.stderr
    assert "compared with" in (tmp_path / "mine" / "report.html").read_text(encoding="utf-8")
    plain = records.load(tmp_path / "mine-plain")
    assert plain.settings["speculation"] == "off"
    found = records.load(tmp_path / "mine").records
    topics = [[each.topic for each in sorted(run, key=lambda each: each.at)[:8]] for run in (plain.records, found)]
    assert topics[0] == topics[1]
    due = list(arrivals.parse("poisson:8").arrivals(3.0, random.Random("1 arrivals")))
    assert len(plain.records) == len(found) == len(due)


def test_locusts_own_command_line(canned_server: Running, prompts: Path) -> None:
    given = words(canned_server[0], prompts, "--shape", "closed:3")
    # Its time is counted from before its imports.
    ran = run(["locust"], *LOCUST, "-u", "4", "-r", "4", "--run-time", "6s", *given)
    assert ran.returncode == 0, ran.stderr
    summary = ran.stdout + ran.stderr
    for event in ("ttft", "tpot", "e2e"):
        assert re.search(rf"grpc +\w+ {event} +[1-9]", summary), summary
    (whole,) = {int(found) for found in re.findall(r"^ +Aggregated +(\d+) +\d+\(", summary, re.MULTILINE)}
    assert whole == sum(map(int, re.findall(r"^grpc +\w+ e2e +(\d+) +\d+\(", summary, re.MULTILINE)))


def test_a_run_of_locust_that_measured_nothing_has_not_succeeded(canned_server: Running, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"category": "slowly", "turns": ["slow 400"]}\n')
    ran = run(["locust"], *LOCUST, "-u", "2", "-t", "3s", *words(canned_server[0], path))
    assert ran.returncode == 1, ran.stderr
    assert "no request ended" in ran.stderr


def test_what_locust_cannot_be_asked_is_told_in_a_line(canned_server: Running, prompts: Path) -> None:
    ran = run(["locust"], *LOCUST, "-u", "2", "-t", "8s", *words(canned_server[0], prompts, "--shape", "often"))
    assert ran.returncode == 2
    assert "loadtest: shape: got 'often'" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--url", "127.0.0.1:9", "--http-url", "127.0.0.1:9"], "no server at 127.0.0.1:9"),
        (["--shape", "steady"], "shape: got 'steady'"),
        (["--tokens", "8"], "tokens: got '8', allowed: MIN:MAX"),
        (["--compare", "/nowhere"], "/nowhere holds no run"),
    ],
)
def test_what_cannot_run_is_one_line(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    ran = run(["loadtest"], *arguments, "--out", str(tmp_path))
    assert ran.returncode == 2
    assert ran.stderr.startswith("loadtest: ")
    assert complaint in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


class Sent:
    """A Traffic in this process, by threads, and what it said."""

    def __init__(self, checked: Plan) -> None:
        self.records: list[Record] = []
        self.events: list[dict[str, Any]] = []
        self.times: dict[str, float] = {}
        self.traffic = Traffic(
            checked,
            self.records.append,
            lambda **event: self.events.append(event),
            self.times.__setitem__,
            clock=time.monotonic,
            pause=time.sleep,
        )


def sent(server: Server, tmp_path: Path, prompt: str) -> Sent:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"category": "one", "turns": [prompt]}))
    given = command_line().parse_args(words(server, path))
    found = Sent(plan(given, seconds=1.0, grace=0.0))
    found.traffic.send(Arrival(time.monotonic() - 1.0))
    found.traffic.close()
    return found


def test_each_turn_of_the_prompts_is_a_tenant_of_the_run_s_own(canned_server: Running, tmp_path: Path) -> None:
    """Else lookups would replay what they were answered before. A request that is cut leaves its tenant's name."""
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"category": "one", "turns": ["slow 400"]}))
    for more, names in (([], 2), (["--repeat"], 0)):
        given = command_line().parse_args(words(canned_server[0], path, *more))
        found = Sent(plan(given, seconds=1.0, grace=0.0))
        before = set(canned_server[1].marks.glob("loadtest *"))
        threads = [threading.Thread(target=found.traffic.send, args=[Arrival(time.monotonic())]) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        found.traffic.close()
        for thread in threads:
            thread.join()
        until(lambda: len(set(canned_server[1].marks.glob("loadtest *")) - before) == names)  # noqa: B023
        assert found.traffic.plan.described["repeat"] is bool(more)


def test_events_of_an_answer(canned_server: Running, tmp_path: Path) -> None:
    found = sent(canned_server[0], tmp_path, "slow 4")
    [record] = found.records
    assert record.finished
    assert record.lag >= 1.0
    [event] = found.events
    assert event["name"] == f"{record.level} e2e"
    assert event["exception"] is None
    assert event["response_time"] >= 150
    assert event["response_length"] == 4
    assert found.times.keys() == {f"{record.level} ttft", f"{record.level} tpot"}
    assert found.times[f"{record.level} tpot"] >= 40


@pytest.mark.parametrize(
    ("prompt", "outcome"),
    [
        ("error [UNAVAILABLE] the queue is full", "Overloaded"),
        ("error [INTERNAL] oh", "ServerError"),
        ("late 5", "ServerError"),
    ],
)
def test_events_of_a_failure(canned_server: Running, tmp_path: Path, prompt: str, outcome: str) -> None:
    found = sent(canned_server[0], tmp_path, prompt)
    [record] = found.records
    assert record.failed
    assert record.outcome == outcome
    [event] = found.events
    assert event["name"].endswith(" e2e")
    assert outcome in str(event["exception"])

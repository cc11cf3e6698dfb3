"""Rates between two looks at the metrics port, and `covey top`, which shows them."""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console, RenderableType

from covey.server import Server
from covey_client import status
from covey_client.cli import main
from covey_client.commands import top
from covey_client.errors import ConnectionLost
from covey_client.rates import MetricsSnapshot, Span

Running = tuple[Server, Any]


def text(rounds: int) -> str:
    """A metrics page after that many rounds."""
    done = rounds // 10
    return f"""# HELP covey_rounds_total Rounds of the engine
covey_rounds_total{{model="covey"}} {rounds}
covey_generation_tokens_total{{model="covey"}} {4 * rounds}
covey_round_seconds_total{{model="covey",phase="pass"}} {0.03 * rounds}
covey_round_seconds_total{{model="covey",phase="draft"}} {0.01 * rounds}
covey_requests_total{{model="covey",outcome="eos"}} {done}
covey_requests_total{{model="covey",outcome="refused"}} {done}
covey_spec_decode_num_drafts_total{{model="covey",drafter="draft_code"}} {rounds}
covey_spec_decode_num_draft_tokens_total{{model="covey",drafter="draft_code"}} {5 * rounds}
covey_spec_decode_num_accepted_tokens_total{{model="covey",drafter="draft_code"}} {3 * rounds}
covey_drafter_failures_total{{model="covey",drafter="draft_code"}} {rounds // 5}
covey_drafter_resident_bytes{{model="covey",drafter="draft_code"}} {64 << 20}
covey_drafter_resident_bytes{{model="covey",drafter="draft_gone"}} 0
covey_drafter_resident{{model="covey",drafter="draft_code"}} 1
covey_drafter_resident{{model="covey",drafter="draft_gone"}} 0
covey_kv_blocks_gained{{model="covey"}} 12
covey_slo_requests_total{{model="covey",slo_class="chat",outcome="met"}} {6 * done}
covey_slo_requests_total{{model="covey",slo_class="chat",outcome="missed"}} {done}
covey_slo_requests_total{{model="covey",slo_class="chat",outcome="refused"}} {done}
covey_slo_requests_total{{model="covey",slo_class="chat",outcome="unknown"}} {5 * done}
covey_slo_good_tokens_total{{model="covey",slo_class="chat"}} {2 * rounds}
covey_slo_target_seconds{{model="covey",slo_class="chat",of="tpot"}} 0.05
covey_requests_running{{model="covey"}} 7
covey_requests_waiting{{model="covey"}} 2
covey_kv_blocks{{model="covey",state="used"}} 30
covey_kv_blocks{{model="covey",state="free"}} 90
covey_time_to_first_token_seconds_bucket{{model="covey",le="0.1"}} {done}
covey_time_to_first_token_seconds_bucket{{model="covey",le="0.2"}} {2 * done}
covey_time_to_first_token_seconds_bucket{{model="covey",le="+Inf"}} {2 * done}
covey_time_to_first_token_seconds_sum{{model="covey"}} 1
covey_time_to_first_token_seconds_count{{model="covey"}} {2 * done}
"""


def reading(at: float, rounds: int) -> MetricsSnapshot:
    return MetricsSnapshot(at, status.parse(text(rounds)))


def test_rates_and_ratios() -> None:
    span = Span(reading(10.0, 100), reading(15.0, 200))
    assert span.rate("covey_rounds_total") == 20
    assert span.rate("covey_requests_total") == 4
    assert span.rate("covey_requests_total", outcome="refused") == 2
    assert span.rate("covey_nothing_total") is None
    assert span.ratio("covey_spec_decode_num_accepted_tokens_total", "covey_spec_decode_num_draft_tokens_total") == 0.6
    assert span.ratio("covey_rounds_total", "covey_nothing_total") is None
    assert span.grew_by("covey_round_seconds_total", "phase") == pytest.approx({"pass": 3.0, "draft": 1.0})


def test_a_server_that_was_started_again_counts_from_zero() -> None:
    assert Span(reading(0.0, 500), reading(10.0, 100)).rate("covey_rounds_total") == 10


def test_one_reading_has_no_rates() -> None:
    one = reading(0.0, 100)
    assert Span(one, one).rate("covey_rounds_total") is None
    assert Span(one, one).ratio("covey_rounds_total", "covey_rounds_total") is None


def test_quantiles_interpolate_in_their_bucket() -> None:
    span = Span(reading(0.0, 0), reading(1.0, 1000))
    name = "covey_time_to_first_token_seconds"
    assert span.quantile(name, 0.25) == pytest.approx(0.05)
    assert span.quantile(name, 0.5) == pytest.approx(0.1)
    assert span.quantile(name, 0.95) == pytest.approx(0.19)
    assert span.quantile("covey_nothing", 0.5) is None
    assert Span(reading(0.0, 100), reading(1.0, 100)).quantile(name, 0.5) is None


def test_beyond_the_last_bound_a_quantile_is_that_bound() -> None:
    page = 'x_bucket{le="1"} 1\nx_bucket{le="+Inf"} 4\n'
    assert Span(MetricsSnapshot(0, ()), MetricsSnapshot(1, status.parse(page, "x"))).quantile("x", 0.9) == 1


def rendered(view: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(view)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def watched(looks: list[status.Status | Exception]) -> Iterator[str]:
    """Views a second apart; an exception is a look that fails."""
    at, left = itertools.count(), iter(looks)

    def look() -> status.Status:
        found = next(left)
        if isinstance(found, Exception):
            raise found
        return found

    for view in top.watch(look, "here:8000", lambda: float(next(at)), lambda _s: None, 1.0):
        yield rendered(view)


def test_the_view_shows_what_happened_between_looks() -> None:
    looks: list[status.Status | Exception] = [
        status.Status(True, None, status.parse(text(rounds))) for rounds in (100, 150)
    ]
    views = watched(looks)
    next(views)
    shown = " ".join(next(views).split())
    for figure in (
        "here:8000 ready",
        "requests 10/s",
        "output 200 tok/s",
        "running 7",
        "waiting 2",
        "refused 5/s",
        "drafted 250 tok/s",
        "accepted 150 tok/s",
        "acceptance 60.0 %",
        "depth 5 tok",
        "KV in use 25.0 %",
        "first token (TTFT) 100 ms 190 ms 198 ms",
        "draft 10",
        "pass 30",
        "draft_code 250 tok/s 60.0 % 5 tok 64 MiB",
        "draft_gone 0 tok/s – – 0 MiB unloaded",
        "blocks gained 12",
        "chat – 50 ms 75.0 % 100 tok/s 5 5 0",
        "drafter failures: draft_code 10",
    ):
        assert figure in shown


def test_a_server_that_goes_away_and_comes_back() -> None:
    up = status.Status(True, None, status.parse(text(100)))
    views = watched([up, ConnectionLost("gone"), up])
    assert "ready" in next(views)
    lost = next(views)
    assert "not ready" in lost
    assert "gone" in lost
    assert "running" in next(views)


def test_rates_are_over_a_window_not_since_the_start() -> None:
    looks: list[status.Status | Exception] = [
        status.Status(True, None, status.parse(text(rounds))) for rounds in (0, *([1000] * 20))
    ]
    *_, last = itertools.islice(watched(looks), 20)
    assert "over the last 10 s" in last
    assert "output 0 tok/s" in " ".join(last.split())


@pytest.mark.e2e
def test_once_against_a_server(canned_server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    server = canned_server[0]
    metrics = server.metrics_url.removeprefix("http://").removesuffix("/metrics")
    where = ["--http-url", server.http_url, "--metrics-url", metrics, "--every", "0.1"]
    assert main(["top", "--once", *where]) == 0
    out = capsys.readouterr().out
    assert "ready" in out
    assert "no figures" in out  # this backend exports none


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--http-url", "127.0.0.1:9"], 5, "127.0.0.1:9"),
        (["--every", "0"], 2, "every: got 0"),
        (["--http-url", "http://"], 2, "allowed: host:port"),
    ],
)
def test_errors_are_one_line(arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", *arguments]) == code
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1

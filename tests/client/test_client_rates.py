"""Rates between two looks at the metrics port."""

from __future__ import annotations

import pytest

from covey_client import status
from covey_client.rates import MetricsSnapshot, Span


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


def test_a_quantile_at_a_bound_whatever_is_empty_behind_it_and_beyond_the_last_is_that_bound() -> None:
    for share, page in (
        (0.5, 'x_bucket{le="1"} 2\nx_bucket{le="2"} 2\nx_bucket{le="4"} 4\nx_bucket{le="+Inf"} 4\n'),
        (0.9, 'x_bucket{le="1"} 1\nx_bucket{le="+Inf"} 4\n'),
    ):
        assert Span(MetricsSnapshot(0, ()), MetricsSnapshot(1, status.parse(page, "x"))).quantile("x", share) == 1

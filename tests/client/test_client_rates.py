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

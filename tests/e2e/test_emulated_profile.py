"""The profile `emulated-7b` through the real server: its own text whatever is drafted, and it says what it is."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from covey import prompts
from covey.server import FREE_PORTS, Options, Server
from covey_client import Client

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROMPTS = [prompts.load(domain)[0] for domain in prompts.DOMAINS]
PASS_SECONDS = 0.0152  # of one row, by the cost table


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log_file = tmp_path_factory.mktemp("emulated") / "tritonserver.log"
    options = Options(**FREE_PORTS, profile="emulated-7b", log_file=log_file, drain_seconds=5.0)
    with Server(options) as running:
        yield running
        running.kill()  # in order it takes long; that is for `test_drain` to see


def test_speculation_changes_no_text(emulated: Server) -> None:
    with Client(emulated.grpc_url) as client:
        for prompt in PROMPTS:
            plain = client.generate(prompt, max_tokens=40, speculation="off")
            assert plain.emulated
            assert plain.usage.output_tokens == 40, "a hash never ends a text"
            assert plain.usage.draft_tokens == 0
            assert plain.text
            for settings in ({"speculation": "fixed:4"}, {}, {"temperature": 1.0, "verification": "rejection"}):
                answer = client.generate(prompt, max_tokens=40, **settings)
                assert answer.tokens == plain.tokens, settings
                assert answer.text == plain.text


def test_drafts_are_accepted_as_often_as_the_profile_says(emulated: Server) -> None:
    drafted = accepted = 0
    with Client(emulated.grpc_url) as client:
        for prompt in PROMPTS:
            usage = client.generate(prompt, max_tokens=200, speculation="fixed:1").usage
            drafted, accepted = drafted + usage.draft_tokens, accepted + usage.accepted_draft_tokens
    assert accepted / drafted == pytest.approx(0.6, abs=0.1)


def test_work_takes_at_least_the_tables_time(emulated: Server) -> None:
    with Client(emulated.grpc_url) as client:
        started = time.monotonic()
        client.generate(PROMPTS[0], max_tokens=40, speculation="off")
        assert time.monotonic() - started > 40 * PASS_SECONDS

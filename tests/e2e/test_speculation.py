"""Speculation through the real server: the same text whatever is asked, and counts that say what was drafted."""

from __future__ import annotations

import itertools

import pytest

from covey import prompts
from covey.contracts import profile
from covey.contracts.profile import DEFAULT_PROFILE
from covey.contracts.types import LOOKUP
from covey.launcher import Server
from covey_client import Client, Usage

pytestmark = pytest.mark.e2e

DRAFTERS = profile.load(DEFAULT_PROFILE).speculation.drafters
PROMPTS = [prompts.load(domain)[0] for domain in prompts.DOMAINS]


@pytest.fixture(scope="module")
def server(crowded: Server) -> Server:
    return crowded


def assert_histogram(usage: Usage) -> None:
    accepted = sum(count * drafts for count, drafts in enumerate(usage.acceptance_histogram))
    assert accepted == usage.accepted_draft_tokens
    assert usage.mean_acceptance_length == pytest.approx(1 + accepted / sum(usage.acceptance_histogram), abs=1e-6)


@pytest.mark.parametrize(
    ("temperature", "each"),
    [(1.0, 2), *(pytest.param(temperature, len(PROMPTS), marks=pytest.mark.slow) for temperature in (0.0, 1.0))],
)
def test_every_drafter_gives_the_same_text(server: Server, temperature: float, each: int) -> None:
    """Each drafter drafts for some of the prompts, and for each prompt at least two do."""
    settings = {"max_tokens": 48, "temperature": temperature, "seed": 11}
    with Client(server.grpc_url) as client:
        plain = [client.generate(prompt, speculation="off", **settings) for prompt in PROMPTS]
        assert all(answer.usage.draft_tokens == 0 and not answer.usage.drafters for answer in plain)
        for (index, name), place in itertools.product(enumerate(DRAFTERS), range(each)):
            prompt, expected = (texts[(index + place) % len(PROMPTS)] for texts in (PROMPTS, plain))
            answer = client.generate(prompt, speculation="fixed:3", drafter=name, **settings)
            assert answer.tokens == expected.tokens, (name, prompt)
            usage = answer.usage
            assert 0 <= usage.accepted_draft_tokens <= usage.draft_tokens
            if usage.draft_tokens:
                rate = usage.accepted_draft_tokens / usage.draft_tokens
                assert usage.acceptance_rate == pytest.approx(rate, abs=1e-6)
                assert_histogram(usage)
                assert usage.drafters == (name,)
                assert usage.draft_tokens_by_drafter == (usage.draft_tokens,)
                assert usage.accepted_draft_tokens_by_drafter == (usage.accepted_draft_tokens,)
        for prompt, expected in zip(PROMPTS, plain):
            assert client.generate(prompt, **settings).tokens == expected.tokens, "auto"
            assert client.generate(prompt, num_draft_tokens=5, **settings).tokens == expected.tokens


def test_drafts_of_a_fitting_drafter_are_accepted(server: Server) -> None:
    with Client(server.grpc_url) as client:
        prompt = prompts.load("code")[1]
        answer = client.generate(prompt, max_tokens=64, speculation="fixed:4", drafter="draft_code")
        assert answer.usage.draft_tokens > 20
        assert answer.usage.acceptance_rate > 0.2, "the bundled specialist knows its domain"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_a_tenant_s_texts_repeat_is_looked_up(server: Server, temperature: float) -> None:
    """The same text for a second time is all foreseen, but for its first tokens."""
    settings = {"max_tokens": 96, "temperature": temperature, "seed": 23}
    with Client(server.grpc_url) as client:
        plain = client.generate(PROMPTS[-1], speculation="off", **settings)
        for tenant in ("repeats", "others"):
            answers = [client.generate(PROMPTS[-1], tenant=tenant, **settings) for _ in range(3)]
            assert [answer.tokens for answer in answers] == [plain.tokens] * 3
            usage = answers[-1].usage
            accepted = dict(zip(usage.drafters, usage.accepted_draft_tokens_by_drafter))
            assert accepted.get(LOOKUP, 0) > len(plain.tokens) / 2
            assert_histogram(usage)


def test_the_rejection_rule_is_served_and_repeatable(server: Server) -> None:
    settings = {"max_tokens": 40, "temperature": 1.0, "seed": 3, "verification": "rejection", "speculation": "fixed:3"}
    with Client(server.grpc_url) as client:
        one = client.generate(PROMPTS[0], drafter="draft_code", **settings)
        two = client.generate(PROMPTS[0], drafter="draft_code", **settings)
        assert one.tokens == two.tokens
        assert one.usage.draft_tokens > 0
        cold = {**settings, "temperature": 0.0}
        plain = client.generate(PROMPTS[0], max_tokens=40, speculation="off")
        assert client.generate(PROMPTS[0], drafter="draft_code", **cold).tokens == plain.tokens

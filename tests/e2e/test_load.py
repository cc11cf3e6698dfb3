"""Many streams at once: mixed lengths, clients that leave, and nothing left behind."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from covey import prompts
from covey.launcher import Server
from covey_client import Client
from tests.e2e.serving import total
from tests.waiting import until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server(crowded: Server) -> Server:
    return crowded


def settle(server: Server) -> None:
    """Wait until the server is at rest with every block free."""

    def left() -> list[float]:
        figures = [total(server, f"covey_requests_{state}") for state in ("running", "waiting")]
        return [*figures, total(server, "covey_kv_blocks", state="used")]

    until(lambda: not any(left()), left, 20.0)


def test_sixty_four_streams_with_cancellations_leave_nothing_behind(server: Server) -> None:
    rng = random.Random(7)
    texts = [text for domain in prompts.DOMAINS for text in prompts.load(domain)]
    jobs = [
        (texts[index % len(texts)], rng.randrange(4, 90), rng.choice([0.0, 1.0]), rng.random() < 0.3, index)
        for index in range(64)
    ]
    with Client(server.grpc_url) as client:

        def run(job: tuple[str, int, float, bool, int]) -> tuple[list[int], bool]:
            prompt, count, temperature, leave, seed = job
            tokens: list[int] = []
            stream = client.stream(prompt, max_tokens=count, temperature=temperature, seed=seed, timeout=120)
            with stream:
                for chunk in stream:
                    tokens += list(chunk.tokens)
                    if leave and len(tokens) > count // 2:
                        return tokens, True
            return tokens, False

        with ThreadPoolExecutor(64) as pool:
            crowded = list(pool.map(run, jobs))
        left = [job for job, (_tokens, gone) in zip(jobs, crowded) if gone]
        assert len(left) > 8
        settle(server)
        for job, (tokens, gone) in list(zip(jobs, crowded))[:16]:
            prompt, count, temperature, _leave, seed = job
            alone = client.generate(prompt, max_tokens=count, temperature=temperature, seed=seed)
            whole = list(alone.tokens)
            assert tokens == (whole[: len(tokens)] if gone else whole), "a request's text must not depend on the batch"
    settle(server)
    assert "AssertionError" not in server.log_text(), "the pool's own check failed"


def test_prompts_that_start_alike_reuse_their_kv(server: Server) -> None:
    long = "Abstract: " + "This paper studies the reuse of computed keys and values in serving. " * 8
    with Client(server.grpc_url) as client:
        first = client.generate(long, max_tokens=8)
        again = client.generate(long, max_tokens=8)
        other = client.generate(long, max_tokens=8, tenant="somebody else")
    assert again.text == first.text == other.text
    assert again.usage.reused_tokens >= 64
    assert other.usage.reused_tokens == 0, "tenants never share"

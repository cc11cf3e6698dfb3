"""Our proposer in vLLM itself: texts are vLLM's own, and so is the distribution of what is sampled.

Runs under the Python that COVEY_VLLM_PYTHON names, of an environment with vLLM's build for CPUs.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from loadtest.bench.peers.pipe import Pipe
from tests.in_vllm.serving import POLICIES, asks, engine, needs_vllm

pytestmark = needs_vllm

BACK_SECONDS = 60.0
SAMPLES = int(os.environ.get("COVEY_VLLM_SAMPLES", "2000"))


@pytest.fixture(scope="module")
def plain() -> Iterator[Pipe]:
    with ExitStack() as stack:
        yield engine(stack)


@pytest.fixture(scope="module")
def ours() -> Iterator[Pipe]:
    with ExitStack() as stack:
        yield engine(stack, POLICIES)


@pytest.fixture(scope="module")
def cramped() -> Iterator[Pipe]:
    """Prompts are read in chunks, and requests are preempted for want of blocks."""
    with ExitStack() as stack:
        yield engine(stack, POLICIES, max_num_batched_tokens=64, max_num_seqs=8, num_gpu_blocks_override=16)


@pytest.mark.parametrize("policy", ["adaptive", "fixed:3"])
@pytest.mark.parametrize("callers", [1, 8, 32])
def test_greedy_texts_are_those_of_vllm_without_us(plain: Pipe, ours: Pipe, callers: int, policy: str) -> None:
    given = asks({1: 3, 8: 16, 32: 40}[callers])
    expected = plain.call("serve", **given, callers=callers)
    for _ in range(2):  # the second time out of the prefix cache
        found = ours.call("serve", **given, callers=callers, policy=policy)
        assert found["tokens"] == expected["tokens"]
    assert found["steps"] < expected["steps"] or policy == "adaptive"


def test_texts_stay_where_prompts_are_read_in_chunks_and_requests_are_preempted_and_aborted(
    plain: Pipe, cramped: Pipe
) -> None:
    given = asks(24, seed=3)
    expected = plain.call("serve", **given, callers=8)["tokens"]
    for policy in ("fixed:3", "adaptive", "off"):
        found = cramped.call("serve", **given, callers=8, policy=policy, abort=4)
        assert found["preempted"] > 0
        assert policy != "fixed:3" or found["drafted"] > 0
        texts = found["tokens"]
        assert texts[4:] == expected[4:]
        assert all(whole[: len(part)] == part for whole, part in zip(expected[:4], texts[:4]))


def test_a_drafter_that_dies_and_comes_back_costs_no_text(plain: Pipe, ours: Pipe) -> None:
    given = asks(8, seed=4)
    expected = plain.call("serve", **given, callers=8)
    for failing in (True, False):
        ours.call("fail", drafter="general", failing=failing)
        deadline = time.monotonic() + BACK_SECONDS
        while True:
            found = ours.call("serve", **given, callers=8, policy="fixed:3")
            assert found["tokens"] == expected["tokens"]
            if failing or found["steps"] < 0.8 * expected["steps"]:
                break
            assert time.monotonic() < deadline, "nobody drafts again"
    assert not [name for name, _, _ in found["figures"] if name == "covey_set_aside_total"]


def test_what_is_sampled_has_the_distribution_that_it_has_without_us(plain: Pipe, ours: Pipe) -> None:
    """The first tokens, of which all but the first were drafted, over many seeds: as far from plain ones as plain ones
    are from each other. By top_p, since vLLM's CPU build ends where requests have a top_k and nothing was drafted."""
    prompt = asks(1)["prompts"][0]
    found = []
    for pipe, policy, seed in ((plain, "", 10_000_000), (plain, "", 1), (ours, "fixed:3", 1)):
        texts: list[list[int]] = []
        for start in range(0, SAMPLES, 500):
            count = min(500, SAMPLES - start)
            given = {"prompts": [prompt] * count, "lengths": [3] * count, "temperature": 1.0, "top_p": 0.7}
            texts += pipe.call("serve", **given, seed=seed + start, callers=32, policy=policy)["tokens"]
        found.append([Counter(text[place] for text in texts) for place in (0, 1, 2)])
    for place in (0, 1, 2):
        other, base, mine = (each[place] for each in found)
        assert len(base) > 1
        assert distance(mine, base) < 1.3 * distance(other, base) + 0.02


def distance(one: Counter[int], two: Counter[int]) -> float:
    """Their total variation."""
    a, b = one.total(), two.total()
    return sum(abs(one[token] / a - two[token] / b) for token in one | two) / 2

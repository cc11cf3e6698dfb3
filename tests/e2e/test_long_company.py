"""Long prompts through the real server: the same ids and the same bits of log-probabilities alone, in company and with
what the prefix cache holds, at temperature 0 and 1."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from covey import prompts
from covey.contracts import profile
from covey.contracts.profile import DEFAULT_PROFILE
from covey.launcher import Server
from covey.text.tokenization import load_tokenizer
from covey_client import Client, Completion
from covey_client.reports import Reports
from tests.bundled import MODELS

pytestmark = pytest.mark.e2e

BUDGET = profile.load(DEFAULT_PROFILE).scheduler.token_budget
LENGTHS = (1100, 700, 1250)
COUNT = 16


def prompts_of(*lengths: int) -> list[list[int]]:
    tokenizer = load_tokenizer(MODELS / "target" / "1")
    assert tokenizer is not None
    texts = [text for domain in prompts.DOMAINS for text in prompts.load(domain)]
    ids = [tokenizer.encode(text).ids for text in texts]
    found = []
    for seed, length in enumerate(lengths):
        order = np.random.default_rng(seed).permutation(len(ids))
        found.append([token for number in order for token in ids[number]][:length])
    return found


def ask(client: Client, prompt: list[int], temperature: float, tenant: str) -> Completion:
    return client.generate(
        prompt,
        max_tokens=COUNT,
        temperature=temperature,
        seed=len(prompt),
        tenant=tenant,
        return_log_probs=True,
        timeout=280,
    )


def said(answer: Completion) -> tuple[tuple[int, ...], bytes]:
    return tuple(answer.tokens), np.asarray(answer.log_probs, np.float32).tobytes()


def test_long_prompts_say_the_same_alone_and_in_company(server: Server) -> None:
    if Reports(server.http_url).facts().numerics != "invariant":
        pytest.skip("the target came up in mode fast on this machine: nothing is promised to the bit")
    assert any(length % BUDGET for length in LENGTHS), "chunks that do not divide the prompts"
    jobs = [(prompt, float(index % 2)) for index, prompt in enumerate(prompts_of(*LENGTHS))]
    with Client(server.grpc_url) as client, ThreadPoolExecutor(len(jobs)) as pool:
        alone = [said(ask(client, *job, f"alone {index}")) for index, job in enumerate(jobs)]
        for reused in (False, True):
            answers = list(pool.map(lambda job: ask(client, *job, "together"), jobs))
            assert [said(answer) for answer in answers] == alone
            assert (sum(answer.usage.reused_tokens for answer in answers) > 0) == reused

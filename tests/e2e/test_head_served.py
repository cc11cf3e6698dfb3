"""A server whose drafter is a head of its target: the text without it, while it lives, dies and comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from covey.contracts.profile import HEAD
from covey.launcher import Server, StartError
from covey.supervision import processes
from covey_client import Client
from tests.e2e.serving import served, total
from tests.models import tiny_heads, tiny_models
from tests.waiting import until

PROFILE = """
description = "a tiny target"
models = [{models}]
[target]
kv_memory_mb = 16
[speculation]
policy = "fixed:3"
"""
APART = """
drafters = ["draft_head"]
[drafter]
folders = ["draft_head:{head}"]
"""
PROMPTS = [np.random.default_rng(seed).integers(2, 97, 20 + 60 * seed).tolist() for seed in range(3)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folders of a target and of its head."""
    place = tmp_path_factory.mktemp("models")
    target = tiny_models.build(place / "target", "llama", max_position_embeddings=512, **tiny_heads.TARGET)
    return target, tiny_heads.build(place / "head")


@pytest.fixture(scope="module")
def running(models: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """As `make serve MODEL= DRAFTER=` starts it, which finds out by itself that the drafter is a head."""
    target, head = map(str, models)
    profile = PROFILE.format(models='"target", "covey"')
    with served(profile, tmp_path_factory.mktemp("head"), model=target, drafter=head) as server:
        yield server


@pytest.mark.e2e
def test_the_text_is_the_same_with_the_head_and_while_it_is_gone(running: Server) -> None:
    with Client(running.grpc_url) as client:

        def answers(speculation: str) -> tuple[list[list[int]], int]:
            each = [
                client.generate(prompt, max_tokens=40, temperature=0.9, seed=seed, speculation=speculation)
                for seed, prompt in enumerate(PROMPTS)
            ]
            assert all(one.usage.drafters in ((), (HEAD,)) for one in each)
            return [list(one.tokens) for one in each], sum(one.usage.draft_tokens for one in each)

        asked = total(running, "nv_inference_request_success", model="draft_head")
        plain, none = answers("off")
        drafted, count = answers("auto")
        assert none == 0
        assert count > 100
        assert drafted == plain
        more = total(running, "nv_inference_request_success", model="draft_head") - asked
        assert more <= 1, "the target drafts itself; the head's process is not asked"
        before = processes.named(running.pid)["draft_head"]
        os.kill(before, signal.SIGKILL)
        assert answers("auto") == (plain, count), "the target needs the head's process for nothing"
        until(lambda: processes.named(running.pid).get("draft_head", before) != before, seconds=60)
        assert answers("auto") == (plain, count)


@pytest.mark.e2e
def test_a_head_that_no_target_reads_for_is_refused_at_once(models: tuple[Path, Path], tmp_path: Path) -> None:
    target, head = models
    profile = PROFILE.format(models='"target", "covey", "draft_head"') + APART.format(head=head)
    with (
        pytest.raises(StartError, match=r"say \[target\] head = 'draft_head'"),
        served(profile, tmp_path, model=str(target)),
    ):
        pass

"""A server whose drafter is a head of its target: the text without it, while it lives, dies and comes back."""

from __future__ import annotations

import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from covey.launcher import FREE_PORTS, Options, Server, StartError
from covey.supervision import processes
from covey_client import Client
from covey_client.status import parse
from tests.models import tiny_heads, tiny_models
from tests.waiting import until

PROFILE = """
description = "a tiny target and a head of random weights"
models = ["target", "covey", "draft_head"]
[target]
folder = "{target}"
kv_memory_mb = 16
{named}
[speculation]
policy = "fixed:3"
drafters = ["draft_head"]
[drafter]
folders = ["draft_head:{head}"]
"""
PROMPTS = [np.random.default_rng(seed).integers(2, 97, 20 + 60 * seed).tolist() for seed in range(3)]


def written(folder: Path, named: str = 'head = "draft_head"') -> Options:
    target = tiny_models.build(folder / "target", "llama", max_position_embeddings=512, **tiny_heads.TARGET)
    head = tiny_heads.build(folder / "head")
    profile = folder / "head.toml"
    profile.write_text(PROFILE.format(target=target, head=head, named=named))
    return Options(**FREE_PORTS, profile=str(profile), log_file=folder / "log")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(written(tmp_path_factory.mktemp("models"))) as server:
        yield server
        server.kill()  # in order it takes long; that is for `test_drain` to see


def executions(server: Server) -> float:
    """How many messages the head's process has answered."""
    with urllib.request.urlopen(server.metrics_url, timeout=10) as answer:
        found = parse(answer.read().decode(), "nv_inference_request_success")
    return sum(each.value for each in found if each.labels.get("model") == "draft_head")


@pytest.mark.e2e
def test_the_text_is_the_same_with_the_head_and_while_it_is_gone(running: Server) -> None:
    with Client(running.grpc_url) as client:

        def answers(speculation: str) -> tuple[list[list[int]], int]:
            each = [
                client.generate(prompt, max_tokens=40, temperature=0.9, seed=seed, speculation=speculation)
                for seed, prompt in enumerate(PROMPTS)
            ]
            return [list(one.tokens) for one in each], sum(one.usage.draft_tokens for one in each)

        asked = executions(running)
        plain, none = answers("off")
        drafted, count = answers("auto")
        assert none == 0
        assert count > 100
        assert drafted == plain
        assert executions(running) <= asked + 1, "the target drafts itself; the head's process is not asked"
        before = processes.named(running.pid)["draft_head"]
        os.kill(before, signal.SIGKILL)
        assert answers("auto") == (plain, count), "the target needs the head's process for nothing"
        until(lambda: processes.named(running.pid).get("draft_head", before) != before, seconds=60)
        assert answers("auto") == (plain, count)


@pytest.mark.e2e
def test_a_head_that_no_target_reads_for_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"say \[target\] head = 'draft_head'"), Server(written(tmp_path, "")):
        pass

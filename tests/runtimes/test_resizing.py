"""A target whose pool grows and contracts while requests run: their texts and their KV are the same."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from covey.contracts.profile import TargetSettings
from covey.contracts.types import NO_INTS, Resized, ResizeStatus, TargetWork, Trees
from covey.target.runner import TargetRunner
from tests.models import tiny_models
from tests.target.driver import Driver
from tests.target.test_run_ahead import Requests
from tests.waiting import until

LEAST, MOST = 100, 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.build(tmp_path_factory.mktemp("elastic"), "llama", num_hidden_layers=2)


def load(folder: Path, most: int, *, least: int = LEAST) -> TargetRunner:
    chosen = TargetSettings(dtype="float64", threads=1, kv_blocks=least, block_size=4)
    return TargetRunner.load(folder, chosen, token_budget=256, name="target", most_blocks=most)


def settled(target: TargetRunner, blocks: int) -> Resized:
    """What becomes of the wish once memory has come or gone."""
    return until(lambda: (answer := target.resize(blocks)).status != ResizeStatus.LATER and answer)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_texts_are_the_same_while_the_pool_breathes(folder: Path, seed: int) -> None:
    breathing, still, requests = load(folder, MOST), load(folder, 0, least=MOST), Requests(seed)
    rng = random.Random(seed)
    sizes = set()
    for _ in range(200):
        work = requests.work(0)
        reply, expected = breathing.step(work), still.step(work)
        for name in ("status", "accepted", "offsets", "tokens"):
            assert getattr(reply, name).tolist() == getattr(expected, name).tolist(), name
        np.testing.assert_allclose(reply.logprobs, expected.logprobs, rtol=1e-5)
        requests.see(work, reply)
        if rng.random() < 0.5:
            breathing.resize(rng.choice([LEAST, rng.randrange(LEAST, MOST + 1)]))  # and perhaps never asked again
            sizes.add(breathing.info().total_blocks)
        breathing.check()
    assert len(sizes) > 20
    ended = TargetWork(NO_INTS, NO_INTS, NO_INTS, Trees.empty(0), frees=tuple(requests.texts), sequence=1 << 20)
    breathing.step(ended)
    breathing.check()
    assert settled(breathing, LEAST) == Resized(ResizeStatus.OK, LEAST)


def test_what_it_has_is_said(folder: Path) -> None:
    target = load(folder, MOST)
    info = target.info()
    model = target._model
    assert (info.least_blocks, info.block_bytes) == (LEAST, model.bytes_per_block)
    assert target.resize(LEAST - 1).status == target.resize(1 << 30).status == ResizeStatus.NOT_HERE
    assert settled(target, 300) == Resized(ResizeStatus.OK, 300)
    assert target.info().total_blocks == 300
    assert target.info().least_blocks == LEAST
    driver, prompt = Driver(target), [2 + i % 90 for i in range(240)]
    driver.open(1, prompt)
    driver.step(1, chunk=240)
    driver.open(2, prompt[::-1])
    assert driver.step(1, 2, chunk=240).total_blocks == 300
    assert settled(target, LEAST) == Resized(ResizeStatus.IN_USE, 300)
    assert settled(target, 150) == Resized(ResizeStatus.OK, 150)
    target.check()

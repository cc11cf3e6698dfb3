"""Two ranks give what one process gives: over chains, trees, reused prefixes and moved slots, and through a target."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import Reader, build, prompts

from covey.contracts.profile import TargetSettings
from covey.contracts.types import Ints, Open, Sampling, TargetWork, Trees
from covey.models.model import PagedModel
from covey.models.parallel.model import ParallelModel
from covey.target.runner import TargetRunner, blocks_in

SIZES = {"dtype": "float32", "device": "cpu", "blocks": 60, "block_size": 4, "max_pass_tokens": 64}
FAMILIES = {  # one with a bias in each matrix and a head that is the embedding, one with norms of queries and keys
    "llama": {"attention_bias": True, "mlp_bias": True},
    "qwen3": {},
}


@dataclass(frozen=True)
class Pair:
    folder: Path
    spread: ParallelModel
    whole: PagedModel

    def readers(self, *rows: Ints, room: int = 0) -> tuple[Reader, Reader]:
        return Reader(self.spread, rows, room=room), Reader(self.whole, rows, room=room)  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = build(tmp_path_factory.mktemp("parallel"), request.param, **FAMILIES[request.param])
    spread = ParallelModel(folder, ranks=2, **SIZES)  # type: ignore[arg-type]
    yield Pair(folder, spread, PagedModel(folder, **SIZES))  # type: ignore[arg-type]
    pids = spread.processes
    spread.close()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    torch.set_num_threads(before)


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_what_is_said_of_it(pair: Pair) -> None:
    spread, whole = pair.spread, pair.whole
    assert (spread.vocab_size, spread.max_positions) == (whole.vocab_size, whole.max_positions)
    assert (spread.end_ids, spread.dtype) == (whole.end_ids, whole.dtype)
    assert spread.device == "cpu x 2"
    assert spread._model.fused
    assert spread.numerics == whole.numerics == "invariant"
    assert spread._model.bytes_per_block == whole.bytes_per_block / 2
    one, two = (TargetSettings(device="cpu", dtype="float32", tensor_parallel=ranks) for ranks in (1, 2))
    memory = 8 * 10 * whole.bytes_per_block  # of 32 tokens instead of 4
    assert [blocks_in(memory, pair.folder, settings, "target") for settings in (one, two)] == [10, 20]


def test_chunks_and_a_reused_prefix(pair: Pair) -> None:
    long, short = prompts(np.random.default_rng(0), 97, 40, 9)
    again = np.append(long[:20], short)  # begins as the first row does, in the same blocks
    for spread, whole in [pair.readers(long, short, again, room=4)]:
        for reader in (spread, whole):
            reader.tables[2][:5] = reader.tables[0][:5]
        for steps in ([(0, 0, 30), (1, 0, 5)], [(0, 30, 40), (1, 5, 9)], [(2, 20, 29), (0, 39, 40)]):
            for found, expected in zip(spread.read(steps), whole.read(steps)):
                near(found, expected)


@pytest.mark.parametrize("paths", [True, False])
def test_trees(pair: Pair, paths: bool) -> None:
    rng = np.random.default_rng(2)
    row = prompts(rng, 97, 13)[0]
    tokens, parents = rng.integers(2, 97, 5).astype(np.int32), np.array([-1, 0, 0, 1, -1], np.int32)
    found = []
    for reader in pair.readers(row, room=8):
        reader.read([(0, 0, 13)])
        found.append(reader.tree(0, 13, tokens, parents, reader.slots(0, 13, 18), paths))
    near(*found)


def test_moved_and_cleared_slots(pair: Pair) -> None:
    row = prompts(np.random.default_rng(3), 97, 12)[0]
    found = []
    for reader in pair.readers(row, room=16):
        reader.read([(0, 0, 12)])
        source = reader.slots(0, 0, 12)
        reader.model.copy_slots(source, reader.slots(0, 12, 24))
        reader.model.clear_slots(source)
        reader.tables[0] = reader.tables[0][3:]
        found.append(reader.read([(0, 11, 12)])[0])
    near(*found)


def test_a_row_is_the_same_bits_in_any_company(pair: Pair) -> None:
    rows = prompts(np.random.default_rng(4), 97, 30, 11, 20)
    reader = pair.readers(*rows)[0]
    alone = reader.read([(0, 0, 30)])[0]
    reader.read([(1, 0, 10), (2, 0, 19)])
    together = reader.read([(1, 10, 11), (0, 29, 30), (2, 19, 20)])
    assert together[1].equal(alone[29:])


def test_a_pass_that_is_too_large_is_refused_before_the_others_begin_it(pair: Pair) -> None:
    reader, whole = pair.readers(prompts(np.random.default_rng(5), 97, 65)[0])
    with pytest.raises(ValueError, match="a pass of 65 tokens"):
        reader.read([(0, 0, 65)])
    near(reader.read([(0, 0, 9)])[0], whole.read([(0, 0, 9)])[0])


def test_a_target_says_the_same(pair: Pair) -> None:
    """Greedy, with drafts of which some are right, so that accepted nodes are moved."""

    def texts(model: PagedModel | ParallelModel) -> list[list[int]]:
        runner = TargetRunner(
            model, blocks=60, block_size=4, reuse=True, name="target", folder=str(pair.folder), run_ahead=True
        )
        known = [[5, 9, 33], list(range(20, 50))]
        opens = tuple(Open(tag, np.array(text, np.int32), len(text), Sampling()) for tag, text in enumerate(known, 1))
        cached = [0, 0]
        for sequence in range(1, 16):
            ready = sequence > 1 and sequence % 3 == 0  # wrong, then right where `right` knows
            drafts = [[3, right.get(len(text), 4)] if ready else [] for text, right in zip(known, rights)]
            trees = Trees(
                np.cumsum([0, *(len(draft) for draft in drafts)]).astype(np.int32),
                np.array([token for draft in drafts for token in draft], np.int32),
                np.full(sum(len(draft) for draft in drafts), -1, np.int32),
            )
            ints = [np.array(part, np.int32) for part in ([1, 2], [len(text) for text in known])]
            chunk = np.array([len(text) - done for text, done in zip(known, cached)], np.int32)
            room = np.array([99, 99], np.int32)
            reply = runner.step(TargetWork(*ints, chunk, trees, opens, sequence=sequence, room=room))
            for row, text in enumerate(known):
                text += reply.tokens[reply.offsets[row] : reply.offsets[row + 1]].tolist()
            cached, opens = reply.num_cached_tokens.tolist(), ()
        runner.check()
        return known

    rights: list[dict[int, int]] = [{}, {}]
    first = texts(pair.whole)
    rights = [dict(enumerate(text)) for text in first]
    assert texts(pair.spread) == texts(pair.whole)
    assert all(text[: len(before)] == before for text, before in zip(texts(pair.spread), first)), (
        "drafts change nothing"
    )

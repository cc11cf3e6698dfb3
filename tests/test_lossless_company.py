"""The bundled target with long prompts: what is drawn after a position, and its log-probability to the bit, depend on
the row alone, not on how its prompt was cut, who shares its passes, what the cache already holds, or whether it was
thrown out and came back.

There is no tolerance, at temperature 0 and 1. The slice that `make test` runs takes seconds, the rest many minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch

from covey.contracts.ports import Drafter
from covey.contracts.types import Ints, Request, Sampling
from covey.drafters import load_drafter
from covey.models.model import PagedModel
from covey.target.runner import TargetRunner
from loadtest.bench.exactness_rows import Counts, Rows, Seen, in_chunks
from tests.bundled import MODELS, SETTINGS, texts
from tests.engines import engine_to, finish
from tests.fakes import Collector, request
from tests.static_planner import StaticPlanner

LONGEST = 2047  # tokens whose next can be drawn; the bundled target has 2,048 positions
CHUNK = 256  # of a row that is read alone
BLOCK = SETTINGS.target.block_size
BLOCKS = 8 * (LONGEST // BLOCK + 1)  # of eight rows of the longest


@cache
def model() -> PagedModel:
    folder = MODELS / "target" / "1"
    return PagedModel(folder, device="cpu", blocks=BLOCKS, block_size=BLOCK, max_pass_tokens=2 * CHUNK)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def exact() -> PagedModel:
    found = model()
    if found.numerics != "invariant":
        pytest.skip(f"the target came up in mode {found.numerics} on this machine: nothing is promised to the bit")
    return found


def text(length: int, seed: int) -> Ints:
    """Bundled prompts one after the other."""
    rng = np.random.default_rng(seed)
    joined = np.concatenate([texts()[number] for number in rng.permutation(len(texts()))])
    assert len(joined) >= length
    return joined[:length].astype(np.int32)


@dataclass(frozen=True)
class Alone:
    """The longest row there can be, and what it gives by itself; so does each of its beginnings."""

    rows: Rows  # it alone
    row: Ints
    seen: Seen

    def until(self, length: int) -> Seen:
        return Seen(self.seen.ids[:length], self.seen.bits[:length])


@pytest.fixture(scope="module")
def alone(exact: PagedModel) -> Alone:
    row = text(LONGEST, 1)
    rows = Rows(exact, [row])
    return Alone(rows, row, rows.alone(0, CHUNK))


def assert_same(tally: Counts, positions: int) -> None:
    assert tally == Counts(positions)


@pytest.mark.parametrize(
    "size", [249, *(pytest.param(size, marks=pytest.mark.slow) for size in (255, 100, 64, 33, 7, 512))]
)
def test_chunks_that_do_not_divide_give_the_same_bits_at_1100(exact: PagedModel, alone: Alone, size: int) -> None:
    tally = Counts()
    tally.compare(Rows(exact, [alone.row[:1100]], 5), [alone.until(1100)], in_chunks(0, 1100, size))
    assert_same(tally, 1100)


def test_700_beside_1250(exact: PagedModel, alone: Alone) -> None:
    lengths, tally = (700, 1250), Counts()
    expected = [alone.until(length) for length in lengths]
    rows = Rows(exact, [alone.row[:length] for length in lengths], 6)
    for start in range(0, 1250, 125):
        steps = [(row, start, min(start + 125, length)) for row, length in enumerate(lengths) if start < length]
        tally.compare(rows, expected, [steps])
    again = [(0, at, at + 1) for at in range(660, 700)]
    tally.compare(rows, expected, [[step, (1, 1249, 1250)] for step in again])
    assert_same(tally, 1950 + 2 * 40)


SWITCHES = sorted({n + near for n in (*range(64, LONGEST, 64), 1, 384, 768, 1536) for near in (-1, 0, 1)} - {0})


@pytest.mark.parametrize(
    "lengths", [SWITCHES[::2], pytest.param(range(1, LONGEST + 1), marks=pytest.mark.slow)], ids=len
)
@pytest.mark.timeout(1200)
def test_every_length_in_company_of_any_other(alone: Alone, lengths: Sequence[int]) -> None:
    """Requests of these lengths decode, eight in a pass: all are beginnings of the longest row and share its blocks."""
    tally = Counts()
    alone.rows.alone(0, CHUNK)  # others have had its blocks since
    for batch in np.array_split(np.random.default_rng(3).permutation(np.asarray(lengths)), -(-len(lengths) // 8)):
        tally.compare(alone.rows, [alone.seen], [[(0, length - 1, length) for length in batch.tolist()]])
    assert_same(tally, len(lengths))


@pytest.mark.slow
def test_every_length_by_itself(exact: PagedModel, alone: Alone) -> None:
    tally = Counts()
    tally.compare(Rows(exact, [alone.row], 8), [alone.seen], in_chunks(0, LONGEST, 1))
    assert_same(tally, LONGEST)


@pytest.mark.slow
def test_eight_requests_of_2020_and_28_tokens(exact: PagedModel, alone: Alone) -> None:
    """All equal, so each is the one alone."""
    rows, tally = Rows(exact, [alone.row] * 8, 9), Counts()
    for start in range(0, 2020, 30):
        tally.compare(rows, [alone.seen] * 8, [[(row, start, min(start + 30, 2020)) for row in range(8)]])
    tally.compare(rows, [alone.seen] * 8, [[(row, at, at + 1) for row in range(8)] for at in range(2020, LONGEST)])
    assert_same(tally, 8 * LONGEST)


# ---- requests, through engine, scheduler and target ------------------------------------------------------------------


@dataclass(frozen=True)
class Served:
    """What requests brought, by their keys: ids and log-probabilities to the bit; and what happened on the way."""

    answers: dict[int, tuple[list[int], list[float]]]
    preemptions: int
    reused: int
    drafted: int


class Serving:
    """A target of its own pool over the shared model; what it keeps is found again by the next batch of its tenant."""

    def __init__(self, paged: PagedModel, blocks: int) -> None:
        self.runner = TargetRunner(paged, blocks=blocks, block_size=BLOCK, reuse=True, name="target", folder="")

    def serve(
        self,
        wanted: Sequence[Request],
        *,
        budget: int = CHUNK,
        batch: int = 8,
        tenant: str = "",
        drafters: Mapping[str, Drafter] | None = None,
    ) -> Served:
        sink, known = Collector(), drafters or {}
        limits = {"max_running": batch, "token_budget": budget, "growth_tokens": 0, "block_size": BLOCK}
        engine = engine_to(sink, self.runner, StaticPlanner(0, 3), known, **limits)
        speculation = "fixed:4" if known else "off"
        finish(engine, [replace(each, speculation=speculation, tenant=tenant) for each in wanted])
        engine.stop()
        engine.run()  # returns at once, its threads ended
        self.runner.check()
        ended = sink.ended.values()
        assert len(ended) == len(wanted)
        assert not any(item.error for item in ended)
        return Served(
            {key: (sink.tokens[key], sink.logprobs[key]) for key in sink.ended},
            engine.scheduler.preemptions,
            sum(item.reused for item in ended),
            sum(item.drafted for item in ended),
        )


def prompted(lengths: Sequence[int], count: int, seed: int) -> list[Request]:
    """Of these lengths, by turns at temperature 0 and 1."""
    return [
        request(key, text(length, seed + key), count, sampling=Sampling(float(key % 2), seed=key, logprobs=True))
        for key, length in enumerate(lengths)
    ]


def by_itself(paged: PagedModel, wanted: Sequence[Request]) -> dict[int, tuple[list[int], list[float]]]:
    """Each alone on a target that holds nothing else."""
    found = {}
    for each in wanted:
        found |= Serving(paged, LONGEST // BLOCK + 1).serve([each]).answers
    return found


def blocks_of(wanted: Sequence[Request]) -> int:
    """What they have at the start: every block that one of them grows by has to be taken from another."""
    return sum(-(-len(each.prompt) // BLOCK) for each in wanted)


def test_requests_thrown_out_and_brought_back_say_what_they_say_alone(exact: PagedModel) -> None:
    wanted = prompted((1043, 601, 655), 24, 20)
    expected = by_itself(exact, wanted)
    crowded = Serving(exact, blocks_of(wanted))
    for reused in (False, True):
        found = crowded.serve(wanted, budget=249)
        assert found.preemptions > 0
        assert (found.reused > 0) >= reused
        assert found.answers == expected


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_grid_of_long_company(exact: PagedModel) -> None:
    """Pass sizes that divide nothing, cold and hot prefixes, preemption, drafts; 24 prompts of 600 to 2,040 tokens."""
    lengths = np.random.default_rng(30).integers(600, 2041 - 8, 22).tolist()
    wanted = prompted([600, 2040 - 8, *lengths], 8, 40)
    expected = by_itself(exact, wanted)
    lookup = load_drafter("ngram", MODELS / "draft_ngram" / "1", MODELS / "target" / "1", SETTINGS, name="draft_ngram")
    roomy = Serving(exact, BLOCKS)
    cases = {
        "alone in chunks of 249": roomy.serve(wanted, budget=249, batch=1, tenant="249"),
        "cold": roomy.serve(wanted[::-1], budget=100, tenant="company"),
        "hot": roomy.serve(wanted[-2:], budget=CHUNK, tenant="company"),  # of equal requests the lower key goes first
        "drafted": roomy.serve(wanted, budget=2 * CHUNK, tenant="drafted", drafters={"draft_ngram": lookup}),
    }
    crowd = prompted((1043, 601, 655, 1500), 48, 40)  # so long that they meet
    preempted = Serving(exact, blocks_of(crowd)).serve(crowd, budget=177, tenant="preempted")
    assert cases["hot"].reused > 0
    assert cases["drafted"].drafted > 0
    assert preempted.preemptions > 0
    assert preempted.answers == by_itself(exact, crowd)
    for name, found in cases.items():
        assert found.answers.items() <= expected.items(), name

"""The race's kernels against the host's implementation, bit for bit; where there is no GPU, in the interpreter."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
import triton
import triton.language as tl

from covey.contracts.types import Sampling
from covey.gpu.kernels import INTERPRETED
from covey.gpu.kernels.draws import ChainDraw, DeviceDraw, Drawn
from covey.gpu.kernels.race import PART, ROUNDED, TILE, Race, gumbel, token_hash
from covey.noise import noise
from covey.noise.noise import Index, Purpose, Reals, Words
from covey.sampling.drawing import SettingsTable, draw, draw_on_device, draw_on_host
from covey.sampling.penalties import Context, penalise
from tests.grids import Row, pairwise, whole
from tests.hopper import Variant, compile_for_hopper

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
HOT = np.array([0.0, 1e-6, 0.3, 1.0, 4.0, 50.0])


@pytest.fixture(autouse=True)
def _needs_a_machine() -> None:
    if not INTERPRETED and not torch.cuda.is_available():
        pytest.skip("neither a GPU nor the interpreter")


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng()


def some_keys(random: np.random.Generator, rows: int) -> Words:
    return random.integers(0, 2**64, rows, np.uint64)


def some_logits(random: np.random.Generator, rows: int, vocab: int, ties: bool = False) -> torch.Tensor:
    values = torch.from_numpy(random.normal(0, 3, (rows, vocab)).astype(np.float32))
    return values.round() if ties else values


def poison(owner: object) -> None:
    """Everything that it owns on the device, so that nothing is right by what an earlier launch left."""
    for value in vars(owner).values():
        if isinstance(value, torch.Tensor):
            value.fill_(torch.nan if value.is_floating_point() else -7)
        elif isinstance(value, Race):
            poison(value)


def drawn_by(logits: torch.Tensor, temperatures: Reals, row_keys: Words, tile: int = TILE, capacity: int = 0) -> Drawn:
    rows, vocab = logits.shape
    drawing = DeviceDraw(max(rows, capacity), vocab, DEVICE, tile)
    poison(drawing)
    drawing.give(temperatures, row_keys, np.ones(rows, np.bool_))
    drawing.launch(logits.to(DEVICE))
    return drawing.results(rows)


def winners_of(logits: torch.Tensor, temperatures: Reals, row_keys: Words) -> tuple[Index, Reals, Index]:
    """By the host, without pruning: best tokens, their values, and the tokens drawn."""
    logits = logits.float()
    best, values = noise.best_tokens(logits)
    won = best.copy()
    hot = np.flatnonzero((temperatures > 0) & np.isfinite(values))
    part, keys = logits[torch.from_numpy(hot)], row_keys[hot]
    entrants = noise.race(part, best[hot, None], values[hot, None], temperatures[hot], keys, prune=False)
    won[hot] = noise.winners(entrants, len(hot))
    return best, values, won


@triton.jit
def write_noise(words, hashes, noises, count, TILE: tl.constexpr):
    ids = tl.arange(0, TILE)
    found = token_hash(ids, tl.load(words), tl.load(words + 1), tl.load(words + 2))
    tl.store(hashes + ids, found, mask=ids < count)
    tl.store(noises + ids, gumbel(found), mask=ids < count)


@triton.jit
def write_gumbel(hashes, noises, TILE: tl.constexpr):
    ids = tl.arange(0, TILE)
    tl.store(noises + ids, gumbel(tl.load(hashes + ids)))


def test_every_tokens_hash_and_noise_have_the_hosts_bits(random: np.random.Generator) -> None:
    vocab = 20_011
    row_keys = np.concatenate([some_keys(random, 6), np.array([0, 2**64 - 1], np.uint64)])
    words = noise.row_words(row_keys)
    expected = np.empty((len(row_keys), vocab), np.int32)
    noise.hash_tokens(noise.token_words(vocab), words, expected, np.empty_like(expected))
    for row in range(len(row_keys)):
        hashes = torch.full((vocab,), -7, dtype=torch.int32, device=DEVICE)
        noises = torch.full((vocab,), torch.nan, dtype=torch.float64, device=DEVICE)
        own = torch.from_numpy(words[:, row].copy()).to(DEVICE)
        write_noise[(1,)](own, hashes, noises, vocab, TILE=32768, **ROUNDED)
        assert np.array_equal(hashes.cpu().numpy(), expected[row])
        bits = noise.gumbel(expected[row]).view(np.int64)
        assert np.array_equal(noises.cpu().numpy().view(np.int64), bits)


def test_noise_at_the_ends_of_the_hashes() -> None:
    ends = np.arange(1024, dtype=np.int32)
    powers = np.repeat(2 ** np.arange(10, 30, dtype=np.int32), 51) + np.tile(np.arange(-25, 26, dtype=np.int32), 20)
    roots = [2052577383, 1388233526, 639545317, 347963459, 2020555019, 639545323]  # near powers of 2 over its root
    hashes = np.concatenate([ends, 2**31 - 1 - ends, powers, roots, np.zeros(1022, np.int32)]).astype(np.int32)
    noises = torch.full((4096,), torch.nan, dtype=torch.float64, device=DEVICE)
    write_gumbel[(1,)](torch.from_numpy(hashes).to(DEVICE), noises, TILE=4096, **ROUNDED)
    assert np.array_equal(noises.cpu().numpy().view(np.int64), noise.gumbel(hashes).view(np.int64))


GRID = {
    "shape": [(257, 64), (1000, 256), (1003, 512)],
    "dtype": [torch.float32, torch.bfloat16, torch.float16],
    "ties": [False, True],
}
SAMPLE = pairwise(GRID)


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, marks=() if row in SAMPLE else pytest.mark.slow) for row in whole(GRID)],
    ids=lambda row: "-".join(map(str, row.values())),
)
def test_draws_are_the_hosts(random: np.random.Generator, row: Row) -> None:
    (vocab, tile), dtype, ties = row.values()
    logits = some_logits(random, len(HOT), vocab, ties).to(dtype)
    row_keys = some_keys(random, len(HOT))
    best, values, won = winners_of(logits, HOT, row_keys)
    drawn = drawn_by(logits, HOT, row_keys, tile, capacity=9)
    assert np.array_equal(drawn.best, best)
    assert np.array_equal(drawn.best_values, values)
    assert np.array_equal(drawn.winners, won)
    expected = logits.double().log_softmax(1).numpy()[np.arange(len(HOT)), won]
    assert np.allclose(drawn.logprobs, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("flat", [0.0, *(pytest.param(flat, marks=pytest.mark.slow) for flat in (1e-3, 0.3))])
def test_pruning_loses_no_winner(random: np.random.Generator, flat: float) -> None:
    rows, vocab = 24, 700
    logits = some_logits(random, rows, vocab) * flat
    temperatures, row_keys = random.choice([1e-3, 0.1, 1.0, 10.0], rows), some_keys(random, rows)
    assert np.array_equal(
        drawn_by(logits, temperatures, row_keys, 256).winners, winners_of(logits, temperatures, row_keys)[2]
    )


def test_what_is_not_finite(random: np.random.Generator) -> None:
    logits = some_logits(random, 9, 150)
    logits[0, 100] = torch.nan
    logits[1, 3], logits[1, 140] = torch.nan, torch.inf
    logits[2, 149] = torch.inf
    logits[3] = -torch.inf
    logits[4, 1:] = -torch.inf
    logits[5, :149] = -torch.inf
    logits[6, ::2] = -torch.inf
    logits[7, :64] = -torch.inf
    logits[8] = torch.nan
    temperatures, row_keys = np.full(9, 0.9), some_keys(random, 9)
    best, values, won = winners_of(logits, temperatures, row_keys)
    drawn = drawn_by(logits, temperatures, row_keys, 64)
    assert np.array_equal(drawn.best_values, values, equal_nan=True)
    assert np.array_equal(drawn.best[2:8], best[2:8])
    assert np.array_equal(drawn.winners[4:8], won[4:8])
    assert ((drawn.winners >= 0) & (drawn.winners < 150)).all()
    assert np.array_equal(np.isnan(drawn.logprobs), ~np.isfinite(values))


@pytest.mark.parametrize("tile", [16384, pytest.param(131072, marks=pytest.mark.slow)])
def test_equal_scores_go_to_the_lowest_id(tile: int) -> None:
    vocab = 100_000
    hashes = np.empty((1, vocab), np.int32)
    for seed in range(64):  # most keys give some two tokens the same noise
        row_keys = noise.seed_words(np.array([seed], np.uint64))
        noise.hash_tokens(noise.token_words(vocab), noise.row_words(row_keys), hashes, np.empty_like(hashes))
        order = np.argsort(hashes[0], kind="stable")
        same = np.flatnonzero(np.diff(hashes[0][order]) == 0)
        if len(same):
            break
    low, high = sorted(order[same[0] : same[0] + 2].tolist())
    logits = torch.full((1, vocab), -300.0)
    logits[0, [low, high]] = 1.0
    unlucky = order[-1]
    logits[0, unlucky] = 1.0001  # the best token, under the least noise
    drawn = drawn_by(logits, np.ones(1), row_keys, tile)
    assert (drawn.best.tolist(), drawn.winners.tolist()) == ([unlucky], [low])


def test_scores_have_the_hosts_bits(random: np.random.Generator) -> None:
    rows, vocab = 24, 500
    logits, row_keys = some_logits(random, rows, vocab), some_keys(random, rows)
    temperatures = random.uniform(0.2, 3.0, rows)
    racing = Race(rows, vocab, DEVICE, 256)
    poison(racing)
    words = torch.from_numpy(noise.row_words(row_keys)[:, :, 0]).to(DEVICE)
    unwanted = torch.zeros(rows, dtype=torch.int32, device=DEVICE)
    racing.launch(logits.to(DEVICE), torch.from_numpy(temperatures).to(DEVICE), words, unwanted)
    best, values = noise.best_tokens(logits)
    entrants = noise.race(logits, best[:, None], values[:, None], temperatures, row_keys)
    expected = np.full(rows, -np.inf)
    np.maximum.at(expected, entrants.rows, entrants.scores)
    scores = racing.partials[2].amax(1).cpu().numpy()
    assert np.array_equal(scores.view(np.int64), expected.view(np.int64))


def test_what_was_first_wanted_in_inference_mode_draws_outside_it(random: np.random.Generator) -> None:
    logits, row_keys = some_logits(random, 4, 300).to(DEVICE), some_keys(random, 4)
    with torch.inference_mode():
        drawing = DeviceDraw(4, 300, DEVICE)
    found = []
    for inside in (True, False, True):
        with torch.inference_mode(inside):
            drawing.give(np.ones(4), row_keys, np.zeros(4, np.bool_))
            drawing.launch(logits)
            found.append(drawing.results(4).winners.tolist())
    assert found[0] == found[1] == found[2] == drawn_by(logits, np.ones(4), row_keys).winners.tolist()


def test_neither_splits_nor_other_rows_change_a_draw(random: np.random.Generator) -> None:
    logits, row_keys = some_logits(random, len(HOT), 900), some_keys(random, len(HOT))
    together = drawn_by(logits, HOT, row_keys, 128)
    assert np.array_equal(together.winners, drawn_by(logits, HOT, row_keys, 1024).winners)
    for row in range(len(HOT)):
        alone = drawn_by(logits[row : row + 1], HOT[row : row + 1], row_keys[row : row + 1], 128)
        assert alone.winners[0] == together.winners[row]
        assert alone.logprobs[0] == together.logprobs[row]  # its last bits too


def test_rows_need_not_be_adjacent(random: np.random.Generator) -> None:
    wide, row_keys = some_logits(random, 6, 500), some_keys(random, 3)
    logits = wide.to(DEVICE)[::2, :300]
    temperatures = np.array([1.0, 0.0, 2.0])
    drawn = drawn_by(logits, temperatures, row_keys, 256)
    assert np.array_equal(drawn.winners, winners_of(wide[::2, :300].contiguous(), temperatures, row_keys)[2])


def test_what_cannot_be_raced_is_refused() -> None:
    drawing = DeviceDraw(2, 300, DEVICE)
    for wrong in (torch.zeros(3, 300), torch.zeros(2, 301), torch.zeros(2, 300).double(), torch.zeros(300, 2).T):
        with pytest.raises(ValueError, match="can be raced"):
            drawing.launch(wrong.to(DEVICE))
    drawing.launch(torch.zeros(0, 300, device=DEVICE))


def samplings() -> list[Sampling]:
    warm = Sampling(temperature=0.8, logprobs=True, seed=3)
    return [
        warm,
        replace(warm, temperature=0.0, seed=4),
        replace(warm, temperature=2.0, top_k=7, seed=5),
        replace(warm, temperature=1.5, top_p=0.6, seed=6, logprobs=False),
        replace(warm, temperature=3.0, min_p=0.3, seed=7),
        replace(warm, temperature=1.0, seed=8, logprobs=False),
        replace(warm, temperature=5.0, top_k=2, seed=9),
    ]


@pytest.mark.parametrize("penalised", [False, True])
def test_settings_are_the_hosts(random: np.random.Generator, penalised: bool) -> None:
    table = SettingsTable(1)
    given = [
        replace(sampling, repetition_penalty=1.7, presence_penalty=0.5) if penalised else sampling
        for sampling in samplings()
    ]
    slots = np.array([table.add(sampling, 0) for sampling in given] * 3, np.int64)
    rows, vocab = len(slots), 400
    positions = np.arange(5, 5 + rows, dtype=np.int64)
    logits = some_logits(random, rows, vocab, ties=True)
    logits[4, 7] = torch.nan
    logits[9] = -torch.inf
    contexts = [Context(np.arange(20, dtype=np.int32))] * rows if penalised else None
    work = penalise(logits, table, slots, positions, contexts)
    host = draw_on_host(logits, work, table, slots, positions)
    given = logits.to(DEVICE)
    device = draw_on_device(given, given if work is logits else work.to(DEVICE), table, slots, positions)
    assert np.array_equal(device.tokens, host.tokens)
    assert np.array_equal(device.faults, host.faults)
    assert device.logprobs.dtype == host.logprobs.dtype
    assert np.allclose(device.logprobs, host.logprobs, atol=1e-5, rtol=0, equal_nan=True)


def shares_of(logits: torch.Tensor, temperatures: Reals, row_keys: Words) -> npt.NDArray[np.float64]:
    """log softmax of what is raced, by the host in float64."""
    rows, vocab = logits.shape
    hashes = np.empty((rows, vocab), np.int32)
    noise.hash_tokens(noise.token_words(vocab), noise.row_words(row_keys), hashes, np.empty_like(hashes))
    hot = temperatures[:, None] > 0
    raced = logits.double().numpy() / np.where(hot, temperatures[:, None], 1.0) + hot * noise.gumbel(hashes)
    shares: npt.NDArray[np.float64] = torch.from_numpy(raced).log_softmax(1).numpy()
    return shares


@pytest.mark.parametrize(
    ("width", "dtype", "surplus"),
    [
        (torch.int32, torch.bfloat16, 0),
        (torch.int64, torch.float32, 300),
        pytest.param(torch.int32, torch.float32, 0, marks=pytest.mark.slow),
        pytest.param(torch.int64, torch.bfloat16, 20, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_chain_takes_the_races_winners(
    random: np.random.Generator, width: torch.dtype, dtype: torch.dtype, surplus: int
) -> None:
    rows, vocab, depth = len(HOT), 600, 3
    chain = ChainDraw(rows + 2, vocab + surplus, DEVICE, 256)
    tokens = torch.full((rows, depth), -7, dtype=torch.int32, device=DEVICE)
    scores = torch.full((rows, depth), torch.nan, device=DEVICE)
    following = torch.full((rows,), -7, dtype=width, device=DEVICE)
    seeds = noise.seed_words(random.integers(0, 1000, rows, np.uint64))
    positions = np.arange(depth)[:, None] + np.full(rows, 11)
    row_keys = noise.keys(np.tile(seeds, depth), positions.reshape(-1), Purpose.COUPLED).reshape(depth, rows)
    words = torch.from_numpy(noise.row_words(row_keys.reshape(-1)).reshape(3, depth, rows)).to(DEVICE)
    temperatures = torch.from_numpy(HOT).to(DEVICE)
    for step in range(depth):
        logits = some_logits(random, rows, vocab + surplus).to(dtype)[:, :vocab]
        poison(chain)
        chain.launch(logits.to(DEVICE), temperatures, words[:, step], step, tokens, scores, following)
        won = winners_of(logits, HOT, row_keys[step])[2]
        assert np.array_equal(tokens[:, step].cpu().numpy(), won)
        assert np.array_equal(following.cpu().numpy(), won)
        expected = shares_of(logits, HOT, row_keys[step])[np.arange(rows), won]
        assert np.allclose(scores[:, step].cpu().numpy(), expected, atol=2e-5, rtol=1e-5)
        assert (tokens[:, step + 1 :] == -7).all()
        assert scores[:, step + 1 :].isnan().all()


def test_a_chain_goes_on_where_no_token_can_be_drawn(random: np.random.Generator) -> None:
    logits = some_logits(random, 4, 100)
    logits[0, 50], logits[1], logits[2, 3] = torch.nan, -torch.inf, torch.inf
    tokens = torch.full((4, 1), -7, dtype=torch.int32, device=DEVICE)
    scores, following = torch.zeros(4, 1, device=DEVICE), torch.full((4,), -7, dtype=torch.int64, device=DEVICE)
    words = torch.from_numpy(noise.row_words(some_keys(random, 4))[:, :, 0]).to(DEVICE)
    chain = ChainDraw(4, 100, DEVICE)
    chain.launch(
        logits.to(DEVICE), torch.ones(4, dtype=torch.float64, device=DEVICE), words, 0, tokens, scores, following
    )
    assert ((tokens >= 0) & (tokens < 100)).all()
    assert torch.equal(tokens[:, 0].long(), following)
    assert scores[:, 0].isnan().tolist() == [True, True, True, False]


@pytest.mark.slow
def test_for_a_gpu_it_compiles_to_operations_that_round_once_and_wide_loads() -> None:
    partials = {"best_values": "*fp32", "best_tokens": "*i32", "scores": "*fp64", "tokens": "*i32", "sums": "*fp32"}
    place = {"stride": "i32", "vocab": "i32"}
    rows = {"temperatures": "*fp64", "words": "*i32", "words_stride": "i32", "wanted": "*i32"}
    tiles = {"TILE": TILE, "SPLITS": 128}

    def race(kind: str, shares: bool) -> Variant:
        signature = {"logits": f"*{kind}"} | place | rows | partials | {"splits": "i32"}
        constants = tiles | {"PART": PART, "SHARES": shares}
        return Variant(
            "covey.gpu.kernels.race", "run_race", signature, constants, aligned=("stride", "vocab"), options=ROUNDED
        )

    def best(kind: str) -> Variant:
        signature = {"logits": f"*{kind}"} | place | {"values": "*fp32", "tokens": "*i32", "splits": "i32"}
        module = "covey.gpu.kernels.race"
        return Variant(module, "find_best", signature, {"TILE": TILE}, aligned=("stride", "vocab"))

    draws = "covey.gpu.kernels.draws"
    outcome = partials | {"splits": "i32"}
    reports = {"logits": "*fp32", "stride": "i32", "wanted": "*i32", "reports": "*fp64", "reports_stride": "i32"}
    taken = {"taken": "*i32", "taken_stride": "i32", "taken_scores": "*fp32", "taken_scores_stride": "i32"}
    taken |= {"next_tokens": "*i64", "step": "i32"}
    wide = [race("fp32", False), race("bf16", True), race("bf16", False), best("fp32"), best("bf16"), best("fp16")]
    small = [
        Variant(draws, "report_draws", outcome | reports, {"SPLITS": 128}),
        Variant(draws, "take_winners", outcome | taken, {"SPLITS": 128}),
    ]
    for variant, made in zip(wide + small, compile_for_hopper(*wide, *small)):
        if variant in wide:
            assert made.widest_load == 16
        assert "fma.rn.f64" not in made.ptx
        assert not re.findall(r"\b(?:add|sub|mul|div|mad)\.f64", made.ptx)  # without .rn they may yet be fused
        if variant.kernel == "run_race":
            assert "div.rn.f64" in made.ptx


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_a_gpu_a_graph_draws_from_a_whole_vocabulary(random: np.random.Generator, dtype: torch.dtype) -> None:
    rows, vocab = 64, 151_936
    logits = some_logits(random, rows, vocab).to(dtype)
    drawing = DeviceDraw(rows, vocab, DEVICE)
    static = torch.zeros(rows, vocab, dtype=dtype, device=DEVICE)
    drawing.give(np.ones(rows), some_keys(random, rows), np.ones(rows, np.bool_))
    drawing.launch(static)  # compiled before capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        drawing.launch(static)
    for _ in range(3):
        temperatures, row_keys = random.choice(HOT, rows), some_keys(random, rows)
        poison(drawing)
        drawing.give(temperatures, row_keys, np.ones(rows, np.bool_))
        static.copy_(logits)
        graph.replay()
        drawn = drawing.results(rows)
        best, values, won = winners_of(logits, temperatures, row_keys)
        assert np.array_equal(drawn.best, best)
        assert np.array_equal(drawn.best_values, values)
        assert np.array_equal(drawn.winners, won)
        expected = logits.double().log_softmax(1).numpy()[np.arange(rows), won]
        assert np.allclose(drawn.logprobs, expected, atol=2e-5, rtol=0)
        logits = logits.roll(1, 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_draw_dispatches_to_the_kernels(random: np.random.Generator) -> None:
    table = SettingsTable(1)
    slots = np.array([table.add(sampling, 0) for sampling in samplings()] * 4, np.int32)
    positions = np.arange(len(slots), dtype=np.int32)
    logits = some_logits(random, len(slots), 32_000)
    host, device = draw(logits, table, slots, positions), draw(logits.to(DEVICE), table, slots, positions)
    assert np.array_equal(device.tokens, host.tokens)
    assert np.allclose(device.logprobs, host.logprobs, atol=1e-5, rtol=0, equal_nan=True)

"""Attention over a paged pool, against a softmax in float64 over the keys that each query sees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
import torch

from covey.contracts.types import NO_INTS, Ints
from covey.gpu.inputs import Inputs
from covey.gpu.kernels import INTERPRETED, PRECISION
from covey.gpu.kernels.attention import JOINED, LEAST, LINES, Parts, attend, launch_of, rows_of
from covey.gpu.kernels.layout import Layout
from covey.gpu.store import KVStore
from covey.gpu.tilings import MOST_WIDE, Tiling
from covey.models.lanes import Lanes, Pass, Windows
from covey.target.packing import leaf_paths
from tests.hopper import Variant, compile_for_hopper
from tests.interpreted import sum_in_order

WHERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ALLOWED = {torch.float32: 2e-6 if INTERPRETED else 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}
LAYERS, BLOCK = 2, 4


@dataclass
class Row:
    """A row of a pass: keys before it, its chain, and its tree's parents."""

    before: int
    chain: int
    parents: tuple[int, ...] = ()

    @property
    def keys(self) -> int:
        return self.before + self.chain + len(self.parents)

    def sees(self, query: int) -> list[int]:
        """Keys that a query of the row sees."""
        if query < self.chain:
            return list(range(self.before + query + 1))
        seen, node = list(range(self.before + self.chain)), query - self.chain
        path = []
        while node >= 0:
            path.append(self.before + self.chain + node)
            node = self.parents[node]
        return seen + path[::-1]

    def position(self, query: int) -> int:
        return len(self.sees(query)) - 1


class Case:
    """Random queries, keys and values of rows scattered over the pool's segments."""

    def __init__(self, rows: list[Row], heads: int, kv_heads: int, dim: int, dtype: torch.dtype, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.rows, self.heads, self.kv_heads, self.dim, self.dtype = rows, heads, kv_heads, dim, dtype
        needed = [-(-row.keys // BLOCK) for row in rows]
        segments = -(-sum(needed) // 8) + 1
        self.store = KVStore(
            Layout(LAYERS, kv_heads, dim, BLOCK, segment_blocks=8),
            segments=segments,
            most_segments=segments,
            dtype=dtype,
            device=WHERE,
        )
        for index in range(segments):
            segment = self.store.segment(index)
            segment.copy_(torch.from_numpy(rng.standard_normal(segment.shape)))
        blocks = rng.permutation(8 * segments).astype(np.int32)
        self.tables = np.zeros((len(rows), max(needed)), np.int32)
        for row, count in enumerate(needed):
            self.tables[row, :count], blocks = blocks[:count], blocks[count:]
        self.places = [(row, query) for row, each in enumerate(rows) for query in range(each.chain + len(each.parents))]
        shape = len(self.places), heads, dim
        self.query = torch.from_numpy(rng.standard_normal(shape)).to(WHERE, dtype)

    def windows(self) -> Windows:
        sizes = [row.chain + len(row.parents) for row in self.rows]
        words = -(-max(len(row.parents) for row in self.rows) // 32)
        bits = np.zeros((len(self.places), words), np.uint32)
        seen = np.zeros(len(self.places), np.int32)
        for at, (number, query) in enumerate(self.places):
            row, keys = self.rows[number], self.rows[number].sees(query)
            base = row.before + row.chain
            seen[at] = min(len(keys), base)
            for key in keys[base:] if query >= row.chain else []:
                bits[at, (key - base) // 32] |= np.uint32(1 << (key - base) % 32)
        return Windows(
            np.cumsum([0, *sizes]).astype(np.int32),
            np.array([row.keys for row in self.rows], np.int32),
            self.tables,
            np.array([row.before + row.chain for row in self.rows], np.int32),
            seen,
            bits.view(np.int32),
        )

    def lanes(self) -> Lanes:
        """One for each chain and path; what paths share is a query of the first."""
        lengths, tables, queries, tails, start = [], [], [], [], 0
        for row, table in zip(self.rows, self.tables):
            known = row.before + row.chain
            slots = table[np.arange(row.keys) // BLOCK] * BLOCK + np.arange(row.keys) % BLOCK
            done: set[int] = set()
            for path in leaf_paths(np.array(row.parents, np.int32)) or [NO_INTS]:
                chain = [] if done else list(range(start, start + row.chain))
                queries.append(chain + [start + row.chain + node for node in path.tolist() if node not in done])
                done |= {*path.tolist(), -1}
                lengths.append(known + len(path))
                tables.append(table)
                tails.append(slots[known + path])
            start += row.chain + len(row.parents)
        return Lanes(
            np.cumsum([0, *map(len, queries)]).astype(np.int32),
            np.array(lengths, np.int32),
            np.stack(tables),
            np.concatenate(queries).astype(np.int32),
            np.cumsum([0, *map(len, tails)]).astype(np.int32),
            np.concatenate(tails).astype(np.int32),
        )

    def found(self, layer: int, parts: int, window: int = 0, softcap: float = 0.0, span: int = 0) -> torch.Tensor:
        """`span`: by lanes, in parts of so many keys."""
        count = len(self.places)
        spans = -(-max(row.keys for row in self.rows) // span) + 1 if span else 0  # the last of which are empty
        tiling = Tiling(self.heads // self.kv_heads, self.kv_heads, 8, self.dtype == torch.float32, span, spans)
        inputs = Inputs(count, self.tables.shape[1], 256, tiling, WHERE)
        positions = np.array([self.rows[row].position(query) for row, query in self.places], np.int32)
        none: Ints = np.zeros(count, np.int32)
        seen = self.lanes() if span else self.windows()
        bucket = inputs.fill(Pass(none, positions, none, seen, NO_INTS), seen)
        parts = spans or parts
        poison = torch.full((bucket.tokens, self.heads, self.dim), torch.nan, dtype=self.dtype, device=WHERE)
        query = poison.clone()
        query[:count] = self.query
        lines = bucket.tokens * self.heads * parts
        split = Parts(
            torch.full((lines * self.dim,), torch.nan, device=WHERE),
            torch.full((lines,), torch.nan if span else -torch.inf, device=WHERE),
            span,
        )
        attend(
            query,
            self.store.pool,
            self.store.offsets,
            poison,
            replace(inputs.tiles(bucket), parts=parts),
            split,
            self.store.layout,
            layer_offset=layer * self.store.layout.layer,
            scale=0.3,
            window=window,
            softcap=softcap,
        )
        return poison[:count].cpu().double()

    def expected(self, layer: int, window: int = 0, softcap: float = 0.0) -> torch.Tensor:
        found = []
        for at, (number, query) in enumerate(self.places):
            row = self.rows[number]
            keys = np.array([k for k in row.sees(query) if not window or k > row.position(query) - window])
            blocks = self.tables[number, keys // BLOCK]
            kv = torch.stack([self.store.segment(b // 8)[layer, b % 8, :, k % BLOCK] for b, k in zip(blocks, keys)])
            kv = kv.cpu().double().view(len(keys), 2, self.kv_heads, self.dim)
            kv = kv.repeat_interleave(self.heads // self.kv_heads, 2)
            scores = torch.einsum("hd,khd->hk", self.query[at].cpu().double(), kv[:, 0]) * 0.3
            if softcap:
                scores = torch.tanh(scores / softcap) * softcap
            found.append(torch.einsum("hk,khd->hd", torch.softmax(scores, 1), kv[:, 1]))
        return torch.stack(found)

    def check(self, layer: int, parts: int, window: int = 0, softcap: float = 0.0, span: int = 0) -> None:
        found, expected = self.found(layer, parts, window, softcap, span), self.expected(layer, window, softcap)
        assert (found - expected).norm() <= ALLOWED[self.dtype] * expected.norm()


def tree(rng: np.random.Generator, nodes: int) -> tuple[int, ...]:
    return tuple(int(rng.integers(-1, node)) if node else -1 for node in range(nodes))


DECODE = [Row(0, 1), Row(40, 1), Row(129, 1)]
CHAINS = [Row(10, 4), Row(63, 5), Row(0, 3), Row(70, 1)]
PREFILL = [Row(0, 37), Row(30, 20), Row(80, 1)]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "dtype"),
    [(4, 2, 16, torch.float32), (7, 1, 24, torch.float16), (2, 2, 64, torch.bfloat16)],
)
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("rows", [DECODE, CHAINS], ids=["decode", "chains"])
def test_chains(rows: list[Row], parts: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
    Case(rows, heads, kv_heads, dim, dtype, seed=1).check(layer=1, parts=parts)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("nodes", [2, 9, 70])
def test_trees_hide_siblings(nodes: int, parts: int) -> None:
    """Trees beside chains; more nodes than one word of bits has, and more queries than one tile takes."""
    rng = np.random.default_rng(nodes)
    rows = [Row(20, 1, tree(rng, nodes)), Row(61, 1), Row(5, 3, tree(rng, max(1, nodes // 2))), Row(0, 1, (-1, -1))]
    Case(rows, 4, 2, 16, torch.float32, seed=2).check(layer=0, parts=parts)


@pytest.mark.parametrize("window", [7, 64])
def test_windows_forget(window: int) -> None:
    Case([*CHAINS, Row(150, 2)], 4, 2, 16, torch.float32, seed=3).check(layer=0, parts=2, window=window)


def test_prompts_take_several_tiles() -> None:
    assert Tiling(7, 1, 8).queries(37) * 7 <= 128
    Case(PREFILL, 7, 1, 16, torch.float32, seed=4).check(layer=1, parts=1)


def test_capped_scores() -> None:
    Case(CHAINS, 4, 2, 16, torch.float32, seed=5).check(layer=0, parts=2, softcap=2.0)


def test_what_no_query_sees_may_be_anything() -> None:
    """NaN in keys beyond a row's last, and in blocks of nobody, changes nothing."""
    case = Case([Row(5, 1), Row(9, 2)], 2, 1, 16, torch.float32, seed=6)
    expected = case.expected(0)
    used = set()
    for row, table in zip(case.rows, case.tables):
        used |= {(int(table[key // BLOCK]), key % BLOCK) for key in range(row.keys)}
    for block in range(case.store.blocks):
        for slot in range(BLOCK):
            if (block, slot) not in used:
                case.store.segment(block // 8)[:, block % 8, :, slot] = torch.nan
    assert (case.found(0, 2) - expected).norm() <= ALLOWED[torch.float32] * expected.norm()


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [pytest.param(4, 2, 16, marks=pytest.mark.slow), (7, 1, 24)])
@pytest.mark.parametrize("rows", [DECODE, CHAINS, PREFILL], ids=["decode", "chains", "prefill"])
def test_lanes(rows: list[Row], heads: int, kv_heads: int, dim: int, dtype: torch.dtype) -> None:
    """In parts of a fixed span."""
    Case(rows, heads, kv_heads, dim, dtype, seed=1).check(layer=1, parts=0, span=64)


@pytest.mark.parametrize(
    ("nodes", "window"),
    [(9, 0), (40, 7), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((9, 7), (40, 0)))],
)
def test_paths_of_trees_are_lanes(nodes: int, window: int) -> None:
    rng = np.random.default_rng(nodes)
    rows = [Row(20, 1, tree(rng, nodes)), Row(61, 1), Row(5, 3, tree(rng, max(1, nodes // 2))), Row(0, 1, (-1, -1))]
    Case(rows, 4, 2, 16, torch.float32, seed=2).check(layer=0, parts=0, window=window, span=64)


@pytest.mark.parametrize(
    ("known", "window", "dtype"),
    [
        (62, 0, torch.bfloat16),
        (126, 70, torch.float32),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in product([3, 62, 126, 200], [0, 70], ALLOWED)
            if case not in ((62, 0, torch.bfloat16), (126, 70, torch.float32))
        ),
    ],
)
def test_the_same_bits_alone_in_a_chunk_and_in_a_tree(
    known: int, window: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four tokens after `known` ones: one by one, as a chunk, and as a path among wrong siblings; beside other rows, in
    other places."""
    sum_in_order(monkeypatch)
    text = Text(known + 4, dtype)
    others = [Row(300, 1), Row(2, 7)]
    alone = torch.cat([text.found([Row(at, 1)], 0, [at], window) for at in range(known, known + 4)])
    forms = {
        "a chunk": ([Row(known, 4)], 0, range(known, known + 4)),
        "a chunk beside others": ([*others, Row(known, 4)], 2, range(known, known + 4)),
        "a chain of drafts": ([Row(known - 1, 1, (-1, 0, 1, 2)), *others], 0, range(known, known + 4)),
        "a path": ([others[0], Row(known - 1, 1, (-1, -1, 1, 0, 1, 4, 4, 6))], 1, known + np.array([1, 4, 6, 7])),
    }
    for name, (rows, number, places) in forms.items():
        assert torch.equal(text.found(rows, number, list(places), window), alone), name


class Text:
    """Keys, values and queries of one row, to be had in any company."""

    heads, kv_heads, dim = 6, 2, 16

    def __init__(self, length: int, dtype: torch.dtype) -> None:
        rng = np.random.default_rng(length)
        self.dtype, self.length = dtype, length
        self.kv = torch.from_numpy(rng.standard_normal((length, LAYERS, 2 * self.kv_heads, self.dim))).to(WHERE, dtype)
        self.kv[-4:, :, self.kv_heads :] *= 300  # values that who does not see them must not feel
        self.query = torch.from_numpy(rng.standard_normal((length, self.heads, self.dim))).to(WHERE, dtype)

    def found(self, rows: list[Row], number: int, places: list[int], window: int) -> torch.Tensor:
        """Results of the text's last tokens, whose keys are at `places` of row `number`."""
        case = Case(rows, self.heads, self.kv_heads, self.dim, self.dtype, seed=len(rows))
        row, last = rows[number], places[-1] + 1 if not rows[number].parents else self.length
        count = len(places)
        everything = [*range(last - count), *places]
        for key, at in enumerate(everything):
            block = int(case.tables[number, at // BLOCK])
            case.store.segment(block // 8)[:, block % 8, :, at % BLOCK] = self.kv[key]
        packed = [case.places.index((number, at - row.before)) for at in places]
        case.query[packed] = self.query[last - count : last]
        return case.found(1, 0, window, span=128)[packed]


@pytest.mark.parametrize("share", [1, 2, 3, 5, 7, 8, 16, 17, 33, 64, 71, 128])
def test_tiles_that_are_always_alike_are_none_of_the_lowest_products(share: int) -> None:
    """What is read at a time is the order of a sum, and such tiles keep theirs whatever suits single queries."""
    for wide in (False, True):
        assert rows_of(Tiling(share, 1, 8, wide, span=256, spans=4).queries(1), share) > LEAST


def variant(rows: int, dim: int, dtype: str, share: int, split: bool, window: int = 0, span: int = 0) -> Variant:
    launch = launch_of(rows, dim, dtype == "fp32")
    numbers = ["first", "count", "row", "reach", "base", "seen", "position", "bits", "order", "tail", "tables"]
    return Variant(
        module="covey.gpu.kernels.attention",
        kernel="attend_tile",
        signature=dict.fromkeys(("query", "pool", "out"), f"*{dtype}")
        | {"offsets": "*i64", "partial": "*fp32", "heights": "*fp32"}
        | dict.fromkeys([*numbers, "header"], "*i32")
        | {"layer_offset": "i64", "token_stride": "i32", "scale": "fp32", "softcap": "fp32"},
        constants={
            "WINDOW": window,
            "CAPPED": False,
            "HEADS": 8 * share,
            "SHARE": share,
            "DIM": dim,
            "BLOCK_SIZE": 16,
            "BLOCK_STRIDE": 16 * 16 * dim,
            "SEGMENT": 64,
            "M": rows,
            "N": launch.keys,
            "D": 1 << (dim - 1).bit_length(),
            "SPLIT": split,
            "SPAN": span,
            "WIDE": False,
            "PRECISION": PRECISION,
        },
        warps=launch.warps,
        stages=launch.stages,
        aligned=("layer_offset", "token_stride"),
    )


@pytest.mark.slow
def test_it_compiles_for_a_gpu_with_wide_loads() -> None:
    join = dict.fromkeys(("partial", "heights"), "*fp32") | {"out": "*bf16", "lines": "i32", "parts": "i32"}
    made = compile_for_hopper(
        variant(16, 128, "bf16", 4, True),
        variant(32, 128, "bf16", 4, True),
        variant(64, 128, "fp16", 7, False, window=4096),
        variant(128, 128, "bf16", 8, False),
        variant(16, 80, "bf16", 1, True),
        variant(16, 256, "bf16", 2, False, window=4096),
        variant(16, 64, "fp32", 1, False),
        variant(MOST_WIDE, 128, "fp32", 8, True),
        variant(MOST_WIDE, 128, "fp32", 8, True, span=256),
        *(variant(rows_of(8, 7), 128, "bf16", 7, True, window, span=512) for window in (0, 4096)),
        Variant(
            "covey.gpu.kernels.attention",
            "join_parts",
            join,
            {"DIM": 128, "D": 128, "LINES": LINES, "PARTS": JOINED},
            warps=LINES,
        ),
    )
    assert all("wgmma" in each.ptx for each in made[-3:-1])
    for each in made[:-1]:
        assert each.widest_load == 16
        assert each.shared <= 227 << 10
    assert all("mma" in each.ptx for each in made[:-1])

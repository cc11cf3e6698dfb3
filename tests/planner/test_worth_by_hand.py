"""The selection by worth against the rules of its module, node by node in plain loops, over random small batches."""

from __future__ import annotations

import math

import numpy as np

from covey.contracts.types import Objective, Rule, Sampling, Trees
from covey.planner.calibration import BLIND, EDGES, RANKS
from covey.planner.expectations import Expectations
from covey.planner.worth import FAINT, GIVEN, SLIGHT, WorthSelector
from covey.requests.active import ActiveRequest
from covey.requests.rounds import Drafted
from covey.requests.scheduler import Batch
from covey_client.costs.table import CostTable
from tests.fakes import request
from tests.planner.test_standing import needs

DEPTH, CASES = 5, 250
DRAFTERS = ("one", "two")


def forest(rng: np.random.Generator, rows: int, most: int) -> Trees:
    parents, scores, sizes = [], [], []
    for _ in range(rows):
        depth, path = [], []
        for index in range(int(rng.integers(0, most + 1))):
            parent = int(rng.choice([-1] + [node for node in range(index) if depth[node] < DEPTH]))
            depth.append(1 + (depth[parent] if parent >= 0 else 0))
            own = float(rng.choice([1e-6, 0.5, 0.5, 1.0, rng.random()]))
            path.append(math.log(own) + (path[parent] if parent >= 0 else 0.0))
            parents.append(parent)
        scores += path
        sizes.append(len(path))
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    tokens = np.arange(len(parents), dtype=np.int32)
    return Trees(offsets, tokens, np.array(parents, np.int32), np.array(scores, np.float32))


def served(rng: np.random.Generator, rows: int, decoding: int) -> Batch:
    found = []
    for key in range(rows):
        tpot = float(rng.choice([math.inf, 0.04, 0.06, 0.08, 0.2, 5.0]))
        rule = Rule.REJECTION if rng.random() < 0.15 else Rule.COUPLED
        asks = "fixed:3" if rng.random() < 0.1 else "auto"
        active = ActiveRequest(
            request(
                key,
                [1],
                int(rng.choice([20, 200])),
                sampling=Sampling(rule=rule),
                objective=Objective() if tpot == math.inf else Objective("chat", math.inf, tpot),
                speculation=asks,
            )
        )
        if key < decoding:
            active.first_token, active.output = 9.8, [7] * int(rng.integers(1, 6))
        found.append(active)
    chunk = np.where(np.arange(rows) < decoding, 1, 20).astype(np.int32)
    return Batch(found, chunk, (), (), decoding, 10.0, float(rng.choice([0.001, 0.02])))


def by_hand(made: WorthSelector, batch: Batch, drafted: Drafted, budget: int) -> list[float]:
    """Path probabilities of what is to be kept, the likeliest first: of nodes alike any may be."""
    trees, prompts = drafted.trees, int(batch.chunk[batch.decoding :].sum())
    calibration, places, paths, row_of, above = made.calibration, {}, [], [], []
    shape = len(DRAFTERS), DEPTH + 1, RANKS, BLIND + 1
    trust, chance = (table.reshape(shape) for table in (calibration._trust, calibration._chance))
    depth: list[int] = []
    for row in range(trees.rows):
        start = int(trees.offsets[row])
        for node in range(start, int(trees.offsets[row + 1])):
            parent = int(trees.parents[node])
            above.append(start + parent if parent >= 0 else -1)
            depth.append(1 + (depth[above[node]] if parent >= 0 else 0))
            rank = places.setdefault((row, parent), 0)
            places[row, parent] += 1
            log = float(trees.scores[node] - (trees.scores[above[node]] if parent >= 0 else 0.0))
            said = np.float32(min(max(math.exp(log), 1e-4), 1 - 1e-6))
            where: tuple[int, int] = (min(rank, RANKS - 1), int(np.searchsorted(EDGES, int(said * 1000) / 1000)))
            if batch.rows[row].request.sampling.rule is Rule.REJECTION:
                where = 0, BLIND
            cell = (DRAFTERS.index(drafted.drafter[row]), depth[node], *where)
            own = min(max(float(chance[cell] + trust[cell] * said), 1e-4), 1 - 1e-6)
            paths.append(own * (paths[above[node]] if parent >= 0 else 1.0))
            row_of.append(row)
    curve = made._expectations.curve(batch.decoding)

    def seconds(nodes: int, reads: int = prompts) -> float:
        return 0.002 + float(curve.at(batch.decoding + nodes, reads))

    asks = [active.request.speculation != "auto" for active in batch.rows]
    kept = {node for node, row in enumerate(row_of) if asks[row]}
    given, room = len(kept), budget - int(batch.chunk.sum())
    weight, late = [1.0] * trees.rows, []
    for row, active in enumerate(batch.rows[: batch.decoding]):
        tpot = active.request.objective.tpot
        need = 0.0 if tpot == math.inf or active.first_token is None else needs(active, batch.now, seconds(given))
        if tpot < math.inf and (need <= 0.0 or active.hopeless(batch.now, batch.fastest)):
            weight[row] = GIVEN
        elif tpot < math.inf and need > 1.0 and not asks[row]:
            mine, tokens = [], 1.0
            for node in sorted((n for n, at in enumerate(row_of) if at == row), key=lambda n: -paths[n]):
                if tokens < need - 1e-9 and paths[node] >= FAINT:
                    mine.append(node)
                    tokens += paths[node]
            if mine:
                late.append((mine, (tokens - need) * tpot))
    late.sort(key=lambda each: len(each[0]))
    on_time = [0]
    for count in range(1, len(late) + 1):
        spent = sum(len(mine) for mine, _ in late[:count])
        longer = seconds(given + spent) - seconds(given)
        on_time.append(sum(margin >= longer for _, margin in late[:count]) if spent <= room - given else 0)
    for mine, _ in late[: on_time.index(max(on_time))]:
        kept |= set(mine)
    values = {node: path * weight[row_of[node]] for node, path in enumerate(paths) if node not in kept}
    best = sorted((node for node, value in values.items() if value >= SLIGHT), key=lambda node: -values[node])
    brought = [batch.decoding + sum(paths[node] for node in kept)]
    for node in best:
        brought.append(brought[-1] + values[node])
    speed = max(tokens / seconds(len(kept) + more, 0) for more, tokens in enumerate(brought))
    gains = [tokens - speed * seconds(len(kept) + more) for more, tokens in enumerate(brought)]
    kept |= set(best[: max(0, min(gains.index(max(gains)), room - len(kept)))])
    return sorted((paths[node] for node in kept), reverse=True)


def test_what_is_kept_is_what_the_rules_say() -> None:
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        rows = int(rng.integers(1, 7))
        decoding = rows if rng.random() < 0.6 else int(rng.integers(1, rows + 1))
        trees = forest(rng, rows, int(rng.choice([1, 2, 6, 12]))).only(np.arange(rows) < decoding)
        free, each = int(rng.choice([1, 4, 16, 64])), float(rng.choice([0.0, 0.0002, 0.002, 0.005, 0.05]))
        verify = [(n, t, 0.02 + each * max(0, t - free)) for n in (1, 4, 16) for t in (n, free, 256)]
        made = WorthSelector(Expectations(DEPTH, 16, CostTable("made up", "for tests", tuple(verify))), DRAFTERS, DEPTH)
        counts = made.calibration
        counts._offered[:] = 20.0 * rng.random(len(counts._offered))
        counts._accepted[:] = counts._offered * rng.random(len(counts._offered))
        counts._weigh()
        batch = served(rng, rows, decoding)
        asked = sum(int(trees.sizes[row]) for row in range(rows) if batch.rows[row].request.speculation != "auto")
        budget = int(batch.chunk.sum()) + (4096 if rng.random() < 0.5 else asked + int(rng.integers(0, 12)))
        drafter = tuple(rng.choice(DRAFTERS, rows).tolist())
        drafted = Drafted(trees, np.ones(rows, np.bool_), {"one": 0.002}, {"one": 0.0}, {}, drafter)
        kept = made.select(batch, drafted, budget)
        if len(trees.tokens):
            assert made._selected is not None
            found = made._selected[1]
            paths = found.nodes.paths(found.own)
            likely = np.sort(paths[kept.tokens])[::-1].tolist()
            assert np.allclose(likely, by_hand(made, batch, drafted, budget), rtol=1e-4), seed


def test_what_need_not_be_ranked_would_not_have_been_chosen() -> None:
    """The bound on what nodes must bring, with curves of any kind: rough, falling, with time that drafts take or save
    whatever they are, beside prompts. Without the bound the same nodes are kept."""
    fewer = 0
    for seed in range(CASES):
        rng = np.random.default_rng([3, seed])
        rows = int(rng.integers(1, 9))
        decoding = rows if rng.random() < 0.6 else int(rng.integers(1, rows + 1))
        trees = forest(rng, rows, int(rng.choice([1, 20]))).only(np.arange(rows) < decoding)
        each = float(rng.choice([1e-5, 5e-4, 2e-3, 5e-3]))
        verify = [(n, t, 0.02 + each * t) for n in (1, 4, 16) for t in (n, 2 * n, 256)]
        curves = Expectations(DEPTH, 16, CostTable("made up", "for tests", tuple(verify)))
        weights = curves.costs._verify.weights
        if rng.random() < 0.3:
            weights[: len(curves.costs._tokens)] *= rng.uniform(0.7, 1.3, len(curves.costs._tokens))
        weights[-1] = rng.choice([0.0, 0.004, -0.01])
        made, batch = WorthSelector(curves, DRAFTERS, DEPTH), served(rng, rows, decoding)
        drafted = Drafted(trees, np.ones(rows, np.bool_), {"one": 0.002}, {"one": 0.0}, {}, ("one",) * rows)
        kept = [made.select(batch, drafted, 4096)]
        fewer += made._least[-1][1] > 0.0
        made.prepare(batch)
        made._least = [(0.0, 0.0)]
        kept.append(made.select(batch, drafted, 4096))
        assert kept[0].tokens.tolist() == kept[1].tokens.tolist(), seed
    assert fewer > CASES / 4, "there is a bound"


def test_drafting_takes_as_long_as_the_slowest_drafter_that_had_to_catch_up_first() -> None:
    rng, sizes = np.random.default_rng(5), []
    trees, batch = forest(rng, 6, 12), served(rng, 6, 6)
    verify = tuple((n, t, 0.02 + 0.002 * t) for n in (1, 4, 16) for t in (n, 64, 256))
    for seconds, catch_up in (
        ({"one": 0.04, "two": 0.01}, {"one": 0.02, "two": 0.01}),
        ({"one": 0.06}, {"one": 0.0}),
        ({"one": 0.02}, {"one": 0.0}),
    ):
        made = WorthSelector(Expectations(DEPTH, 16, CostTable("made up", "for tests", verify)), DRAFTERS, DEPTH)
        drafted = Drafted(trees, np.ones(6, np.bool_), seconds, catch_up, {}, ("one",) * 6)
        sizes.append(made.select(batch, drafted, 4096).sizes.tolist())
    assert sizes[0] == sizes[1] != sizes[2], "where drafting has taken long already, more is worth verifying"

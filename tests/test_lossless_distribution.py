"""Whole speculative rounds over a tiny vocabulary, against exact enumeration of the target.

Target and drafter are fixed tables of logits given the last two tokens. Hundreds of thousands of requests, each with a
seed of its own, run at once through the loop that drafters run, the real draws and walks; the joint distribution of
the first tokens is compared by chi-square. The same test must refuse verifiers that are known to be wrong.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from reference_sampling import distribution
from scipy import stats

from covey.contracts.types import Floats, Ints, Sampling, Trees
from covey.drafters.choosing import Choosing
from covey.drafters.proposing import Rows, propose_trees
from covey.drafters.sessions import readable
from covey.models.stepper import Call, Race, Visible
from covey.noise.noise import Index, Reals, seed_words
from covey.sampling import rejection
from covey.sampling.drawing import Context, SettingsTable, draw
from covey.trees.verify import parent_places, walk

PROMPT = [1, 2]
LENGTH = 3
SEQUENCES = 100_000

PLAIN = Sampling(temperature=1.0)
SETTINGS = {
    "hot": replace(PLAIN, temperature=1.7),
    "one": PLAIN,
    "cold": replace(PLAIN, temperature=0.4),
    "nucleus": replace(PLAIN, temperature=0.8, top_p=0.8, top_k=4),
    "min_p": replace(PLAIN, min_p=0.15),
}
PENALTIES = replace(PLAIN, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3, bad_words=((0, 3),))
BIASED = replace(PLAIN, logit_bias=((0, -100.0), (3, 1.2), (1, -0.7)), presence_penalty=0.4)


@dataclass(frozen=True)
class World:
    """Logits of the next token by the last two."""

    target: Floats
    drafter: Floats

    @classmethod
    def make(cls, drafter: str, vocab: int = 5) -> World:
        rng = np.random.default_rng(7)
        target = rng.normal(size=(vocab, vocab, vocab)) * 1.3
        noise = rng.normal(size=target.shape)
        other = {"good": target + 0.4 * noise, "bad": noise * 1.5, "same": target}[drafter]
        return cls(target.astype(np.float32), other.astype(np.float32))

    def short(self) -> World:
        """Return this world with a drafter that lacks the last token: it reads that as another."""
        seen = readable(np.arange(len(self.target)), len(self.target) - 1)
        return replace(self, drafter=self.drafter[np.ix_(seen, seen)][..., :-1])


def look(table: Floats, before: Ints, last: Ints) -> Floats:
    found: Floats = table[before, last]
    return found


@lru_cache(maxsize=16)
def open_table(sampling: Sampling, count: int) -> SettingsTable:
    """Slot i belongs to a request with seed i. Two are added as a target adds them; the others, which
    differ in their seeds alone, are copied, since so many calls take most of a test's time."""
    table = SettingsTable(count)
    assert [table.add(replace(sampling, seed=i), len(PROMPT)) for i in range(2)] == [0, 1]
    seeds = seed_words(np.arange(count, dtype=np.uint64))
    assert np.array_equal(table.seed[:2], seeds[:2])
    for column in vars(table).values():
        if isinstance(column, np.ndarray):
            column[2:] = column[0]
    table.seed[:] = seeds
    table.samplings[2:] = table.samplings[:1] * (count - 2)
    table.biases |= dict.fromkeys(range(2, count), table.biases[0]) if table.biases else {}
    table._free.clear()
    return table


class Batch:
    """Requests in flight: their tokens, and what a round does to those that still lack some."""

    def __init__(self, sampling: Sampling, count: int) -> None:
        self.table = open_table(sampling, count)
        self.history = sampling.has_penalties
        self.slots = np.arange(count, dtype=np.int32)
        self.tokens = np.tile(np.array(PROMPT + [0] * (LENGTH + 8), np.int32), (count, 1))
        self.lengths = np.full(count, len(PROMPT), np.int32)
        self.drafted = self.accepted = 0
        self.discarded = np.full(count, -1)  # what the last round drafted for the place that is next, in vain

    def open_rows(self) -> Ints:
        return np.flatnonzero(self.lengths < len(PROMPT) + LENGTH)

    def commit(self, rows: Ints, offsets: Ints, tokens: Ints) -> None:
        sizes = np.diff(offsets)
        owner = np.repeat(rows, sizes)
        place = self.lengths[owner] + np.arange(len(tokens)) - np.repeat(offsets[:-1], sizes)
        self.tokens[owner, place] = tokens
        self.lengths[rows] += sizes.astype(np.int32)

    def ends(self, rows: Ints) -> tuple[Ints, Ints]:
        return self.tokens[rows, self.lengths[rows] - 2], self.tokens[rows, self.lengths[rows] - 1]

    def histories(self, rows: Ints, trees: Trees) -> list[Context | None] | None:
        """One context for every root and node."""
        if not self.history:
            return None
        contexts: list[Context | None] = []
        for index, row in enumerate(rows.tolist()):
            known = self.tokens[row, : self.lengths[row]]
            span = slice(int(trees.offsets[index]), int(trees.offsets[index + 1]))
            paths: list[list[int]] = [[]]
            for token, parent in zip(trees.tokens[span].tolist(), trees.parents[span].tolist()):
                paths.append([*paths[parent + 1], token])
            contexts += [Context(known, np.array(path, np.int32)) for path in paths]
        return contexts

    def outcome(self) -> Ints:
        return self.tokens[:, len(PROMPT) : len(PROMPT) + LENGTH]


class TableStepper:
    """Implements `covey.models.stepper.Stepper` over a table of logits by the last two tokens that each lane
    sees."""

    draws = False

    def __init__(self, table: Floats) -> None:
        self._table = table

    def begin(self, call: Call) -> None:
        """Needs no preparation."""

    def step(self, tokens: Index, rows: int, visible: Visible | None = None) -> Floats:
        self._seen = np.concatenate([self._seen[:rows], tokens.reshape(rows, -1)], axis=1)
        if visible is None:
            return look(self._table, self._seen[:, -2], self._seen[:, -1])
        columns = np.where(visible, np.arange(visible.shape[2]), -1)
        last_two = np.sort(columns, axis=2)[:, :, -2:].reshape(rows, -1)
        before, last = np.moveaxis(np.take_along_axis(self._seen, last_two, 1).reshape(-1, 2), 1, 0)
        return look(self._table, before, last)

    def catch_up(self, tokens: Index, rows: int) -> Floats:
        self._seen = tokens.reshape(rows, -1)
        return look(self._table, self._seen[:, -2], self._seen[:, -1])

    def chain(self, pending: Index, race: Race) -> tuple[Ints, Floats] | None:
        raise NotImplementedError


def drafts(world: World, batch: Batch, rows: Ints, depth: int, width: int, rejection_round: int = -1) -> Trees:
    """What a drafter proposes; under the rejection rule, chains of that round."""
    count = len(rows)
    if not depth:
        return Trees.empty(count)
    wanted = Rows(
        pending=np.stack(batch.ends(rows), 1).astype(np.int64),
        settings=batch.slots[rows].astype(np.int64),
        positions=batch.lengths[rows].astype(np.int64),
        depths=np.full(count, depth),
        width=width,
        vocab_size=world.drafter.shape[-1],
        rejection=np.arange(count if rejection_round >= 0 else 0),
        rounds=np.full(count, max(0, rejection_round)),
        q_rows=rejection_round >= 0,
        log_q=False,
    )
    return propose_trees(TableStepper(world.drafter), batch.table, wanted).trees()


@dataclass(frozen=True)
class Asked:
    """What the target has one of for every root and node, packed as in `covey.trees.verify`."""

    logits: Floats
    slots: Ints
    positions: Ints
    contexts: list[Context | None] | None


def asked(world: World, batch: Batch, rows: Ints, trees: Trees) -> Asked:
    places = trees.sizes + 1
    roots = trees.offsets[:-1] + np.arange(len(rows))
    is_node = np.ones(int(places.sum()), np.bool_)
    is_node[roots] = False
    parents = parent_places(trees)
    before, last = (np.repeat(end, places) for end in batch.ends(rows))
    last[is_node] = trees.tokens
    before[is_node] = last[parents]
    depth = np.zeros(len(is_node), np.int32)
    for _ in range(int(trees.sizes.max(initial=0))):
        depth[is_node] = depth[parents] + 1
    positions = np.repeat(batch.lengths[rows], places) + depth
    logits = look(world.target, before, last)
    return Asked(logits, np.repeat(batch.slots[rows], places), positions, batch.histories(rows, trees))


def coupled_round(world: World, batch: Batch, rows: Ints, depth: int, width: int) -> None:
    trees = drafts(world, batch, rows, depth, width)
    given = asked(world, batch, rows, trees)
    drawn = draw(given.logits, batch.table, given.slots, given.positions, given.contexts)
    walked = walk(trees, drawn.tokens)
    batch.drafted += len(trees.tokens)
    batch.accepted += int(walked.accepted.sum())
    batch.commit(rows, walked.offsets, walked.tokens)


def rejection_round(world: World, batch: Batch, rows: Ints, depth: int, key: int) -> tuple[Trees, rejection.Outcome]:
    trees = drafts(world, batch, rows, depth, 1, key)
    given = asked(world, batch, rows, trees)
    rounds = np.full(len(rows), key, np.int32)
    return trees, rejection.verify_chains(
        given.logits, batch.table, given.slots, given.positions, given.contexts, trees, rounds
    )


def run_coupled(world: World, sampling: Sampling, depth: int, width: int, count: int = SEQUENCES) -> Ints:
    batch = Batch(sampling, count)
    while len(rows := batch.open_rows()):
        coupled_round(world, batch, rows, depth, width)
    return batch.outcome()


def run_rejection(
    world: World, sampling: Sampling, steered: bool = False, fresh: bool = True, count: int = SEQUENCES
) -> Ints:
    """`steered`: a round's length depends on what the last one drafted in vain. `fresh` False keys all rounds alike,
    which is wrong."""
    batch = Batch(sampling, count)
    key = 0
    while len(rows := batch.open_rows()):
        wanted = np.where(steered & (batch.discarded[rows] < 2) & (batch.discarded[rows] >= 0), 0, 2)
        for depth in np.unique(wanted).tolist():
            some = rows[wanted == depth]
            trees, judged = rejection_round(world, batch, some, depth, key)
            accepted = judged.walk.accepted
            batch.commit(some, judged.walk.offsets, judged.walk.tokens)
            batch.discarded[some] = -1
            if depth:
                drafted = trees.tokens.reshape(-1, depth)
                lost = np.flatnonzero(accepted + 1 < depth)
                batch.discarded[some[lost]] = drafted[lost, accepted[lost] + 1]
        key += int(fresh)
    return batch.outcome()


def p_value(world: World, sampling: Sampling, outcome: Ints) -> float:
    """Chi-square of the joint distribution of the emitted tokens against the target's own."""
    table = world.target
    vocab = len(table)
    expected = np.zeros(vocab**LENGTH)
    steps: dict[tuple[int, ...], Reals] = {}
    for size in range(LENGTH):
        for output in itertools.product(range(vocab), repeat=size):
            tokens = [*PROMPT, *output]
            steps[output] = distribution(table[tokens[-2], tokens[-1]], sampling, PROMPT, list(output))
    for index, output in enumerate(itertools.product(range(vocab), repeat=LENGTH)):
        expected[index] = np.prod([steps[output[:i]][output[i]] for i in range(LENGTH)])
    observed = np.bincount(outcome @ vocab ** np.arange(LENGTH - 1, -1, -1), minlength=len(expected))
    assert not observed[expected == 0].any(), "a sequence that the target never emits"
    expected *= len(outcome)
    rare = expected < 5
    observed = np.append(observed[~rare], observed[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 1e-9:
        observed, expected = observed[:-1], expected[:-1]
    return float(stats.chisquare(observed, expected).pvalue)


def some(*names: str) -> list[Any]:
    """All settings, of which `make test` runs these."""
    return [pytest.param(name, marks=() if name in names else pytest.mark.slow) for name in SETTINGS]


@pytest.mark.parametrize("name", some("cold", "nucleus"))
def test_draws_follow_the_target(name: str) -> None:
    """Without drafts; the coupled rule's trees must then equal this, token for token."""
    world = World.make("good")
    assert p_value(world, SETTINGS[name], run_coupled(world, SETTINGS[name], depth=0, width=1)) > 1e-3


@pytest.mark.parametrize("name", some("hot", "nucleus", "min_p"))
def test_rejection_follows_the_target(name: str) -> None:
    world = World.make("bad" if name in ("hot", "min_p") else "good")
    assert p_value(world, SETTINGS[name], run_rejection(world, SETTINGS[name])) > 1e-3


def test_rejection_follows_the_target_where_a_drafter_shipped_no_q(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside rows that have theirs, the others' nodes are said to be certain, although they were drawn."""
    verify_chains = rejection.verify_chains

    def partly(*values: Any) -> rejection.Outcome:
        *before, trees, rounds = values
        ids, probs = trees.q_ids.copy(), trees.q_probs.copy()
        without = np.flatnonzero(np.repeat(np.arange(trees.rows) % 2 == 0, trees.sizes))
        ids[without], probs[without] = 0, 0.0
        ids[without, 0], probs[without, 0] = trees.tokens[without], 1.0
        return verify_chains(*before, replace(trees, q_ids=ids, q_probs=probs), rounds)

    monkeypatch.setattr(rejection, "verify_chains", partly)
    world = World.make("good")
    assert p_value(world, PLAIN, run_rejection(world, PLAIN)) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["good", "bad", "same"])
@pytest.mark.parametrize("name", [*SETTINGS, "penalties"])
def test_both_rules_follow_the_target(name: str, drafter: str) -> None:
    world, sampling = World.make(drafter), {**SETTINGS, "penalties": PENALTIES}[name]
    assert p_value(world, sampling, run_coupled(world, sampling, depth=2, width=2)) > 1e-3
    assert p_value(world, sampling, run_rejection(world, sampling)) > 1e-3


def test_bias_is_in_what_both_rules_follow() -> None:
    world, count = World.make("good"), 10_000
    coupled = run_coupled(world, BIASED, depth=2, width=2, count=count)
    assert np.array_equal(coupled, run_coupled(world, BIASED, depth=0, width=1, count=count))
    assert p_value(world, BIASED, coupled) > 1e-3
    assert p_value(world, BIASED, run_rejection(world, BIASED, count=count)) > 1e-3


def test_penalties_see_the_drafted_path() -> None:
    world, count = World.make("good"), 25_000
    assert p_value(world, PENALTIES, run_rejection(world, PENALTIES, count=count)) > 1e-3


@pytest.mark.parametrize("drafter", ["good", "bad", "same"])
@pytest.mark.parametrize("sampling", [*SETTINGS.values(), PENALTIES, replace(PENALTIES, temperature=0.0)])
def test_coupled_equals_plain_decoding(drafter: str, sampling: Sampling) -> None:
    world = World.make(drafter)
    count = 1000
    plain = run_coupled(world, sampling, depth=0, width=1, count=count)
    for depth, width in ((1, 1), (4, 1), (1, 4), (2, 3)):
        assert np.array_equal(run_coupled(world, sampling, depth, width, count), plain)


@pytest.mark.parametrize("name", ["one", pytest.param("nucleus", marks=pytest.mark.slow)])
def test_both_rules_follow_a_target_that_has_more_tokens_than_the_drafter(name: str) -> None:
    world, sampling, count = World.make("good").short(), SETTINGS[name], 20_000
    coupled = run_coupled(world, sampling, depth=2, width=2, count=count)
    assert np.array_equal(coupled, run_coupled(world, sampling, depth=0, width=1, count=count))
    assert (coupled == len(world.target) - 1).mean() > 0.03, "what the drafter lacks is drawn"
    assert p_value(world, sampling, coupled) > 1e-3
    assert p_value(world, sampling, run_rejection(world, sampling, count=count)) > 1e-3
    batch = Batch(sampling, count)
    coupled_round(world, batch, batch.open_rows(), 2, 1)
    assert batch.accepted > batch.drafted / 3


def test_drafts_of_the_same_model_are_always_accepted() -> None:
    """The loop that the other tests run is the one that drafters run: its paths are what they seem."""
    world = World.make("same")
    batch = Batch(PLAIN, 1000)
    coupled_round(world, batch, batch.open_rows(), 4, 1)
    assert batch.accepted == batch.drafted == 4000
    batch = Batch(PLAIN, 1000)
    coupled_round(world, batch, batch.open_rows(), 2, 3)
    assert batch.accepted > 1990


def test_greedy_is_the_same_under_both_rules() -> None:
    world, greedy = World.make("good"), Sampling()
    plain = run_coupled(world, greedy, depth=0, width=1, count=4)
    assert np.array_equal(run_rejection(world, greedy, count=4), plain)


def test_the_test_refuses_accepting_below_p(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejection, "accept", lambda uniform, p, q: uniform <= p + 0.0 * q)
    world = World.make("good")
    assert p_value(world, PLAIN, run_rejection(world, PLAIN)) < 1e-6


def test_noise_is_never_used_again() -> None:
    """A round's length may depend on finished rounds, drawn tokens included, because the next draws afresh. If it did
    not, tokens drafted in vain would choose who drafts them again."""
    world = World.make("bad")
    assert p_value(world, PLAIN, run_rejection(world, PLAIN, steered=True)) > 1e-3
    assert p_value(world, PLAIN, run_rejection(world, PLAIN, steered=True, fresh=False)) < 1e-6


def test_coupled_acceptance_keeps_its_bound() -> None:
    """Between (1 - TV) / (1 + TV) and 1 - TV, which is what the rejection rule accepts."""
    rng = np.random.default_rng(3)
    count, vocab = 50_000, 8
    table = SettingsTable(count)
    slots = np.array([table.add(replace(PLAIN, seed=i), 0) for i in range(count)], np.int32)
    for scale in (0.3, 1.0, 2.0):
        target = torch.tensor(rng.normal(size=vocab) * 1.5, dtype=torch.float32)
        drafter = target + torch.tensor(rng.normal(size=vocab) * scale, dtype=torch.float32)
        positions = np.full(count, 11, np.int32)
        drawn = draw(target.expand(count, vocab), table, slots, positions).tokens
        choosing = Choosing(table, slots.astype(np.int64), positions.astype(np.int64))
        drafted = choosing.best(drafter.expand(count, vocab).numpy(), 0)[0]
        agree = float((drawn == drafted).mean())
        tv = 0.5 * float((target.double().softmax(0) - drafter.double().softmax(0)).abs().sum())
        slack = 4 / np.sqrt(count)
        assert (1 - tv) / (1 + tv) - slack < agree < 1 - tv + slack

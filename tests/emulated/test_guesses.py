"""Emulated drafters whose guesses were recorded: trees, right as often as the tables say, the same every time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from covey.contracts import profile
from covey.contracts.errors import SettingError
from covey.contracts.types import DraftWork, Open, Sampling, Trees
from covey.emulated.devices import EmulatedDrafter
from covey.emulated.guesses import Guesser, Guesses
from covey.emulated.hash_model import HashModel
from covey.trees.paths import Nodes
from covey_client.costs.table import CostTable
from loadtest.simulation.virtual import VirtualClock

MODEL = HashModel(5000, low=8)


def bundled() -> Guesses:
    return Guesses.load(profile.profiles_folder() / "acceptance" / "bundled.json")


def trees(rows: int, depth: int, width: int, subject: str = "") -> tuple[np.ndarray, Trees]:
    guesses = bundled()
    states = np.random.default_rng(0).integers(0, 1 << 63, rows).astype(np.uint64)
    sizes = (np.full(rows, each, np.int32) for each in (depth, width))
    return states, Guesser(guesses, MODEL, 7).trees(states, np.full(rows, guesses.subject(subject)), *sizes)


def right(states: np.ndarray, made: Trees) -> np.ndarray:
    """Which nodes lie on the text's own path, walked level by level."""
    nodes, found, after = Nodes.of(made), np.zeros(len(made.tokens), np.bool_), np.zeros(len(made.tokens), np.uint64)
    for depth in range(1, nodes.depth.max() + 1):
        level = np.flatnonzero(nodes.depth == depth)
        above, tokens = nodes.above[level], made.tokens[level].astype(np.int64)
        before = after[above] if depth > 1 else states[nodes.row_of[level]]
        found[level] = (found[above] if depth > 1 else True) & (tokens == MODEL.nexts(before))
        after[level] = MODEL.states(tokens, before)
    return found


@pytest.mark.parametrize("subject", ["code", "chat", ""])
def test_guesses_are_right_as_often_as_recorded(subject: str) -> None:
    guesses = bundled()
    states, made = trees(4000, 2, 4, subject)
    nodes, hit = Nodes.of(made), right(states, made)
    ranks = nodes.ranks()
    table = guesses.right[guesses.subject(subject)]
    places = np.diff(guesses.bounds[guesses.subject(subject)], prepend=0.0)
    first = [hit[(nodes.depth == 1) & (ranks == rank)].sum() / 4000 for rank in range(4)]
    assert first == pytest.approx(np.diff(places[0] @ table[0], prepend=0.0)[:4], abs=0.025)
    reached = hit[(nodes.depth == 1) & (ranks == 0)].sum()
    second = hit[(nodes.depth == 2) & (ranks == 0) & (ranks[nodes.above] == 0)].sum()
    assert second / reached == pytest.approx(places[1] @ table[1][:, 0], abs=0.05)


def test_a_path_has_at_most_one_right_node_a_level_and_siblings_differ() -> None:
    states, made = trees(300, 4, 4)
    nodes, hit = Nodes.of(made), right(states, made)
    places = list(zip(nodes.row_of[hit].tolist(), nodes.depth[hit].tolist()))
    assert len(places) == len(set(places))
    said = list(zip(nodes.row_of.tolist(), nodes.above.tolist(), made.tokens.tolist()))
    assert len(said) == len(set(said))
    assert made.sizes.tolist() == [16] * 300
    assert ((made.tokens >= 8) & (made.tokens < 5000)).all()
    below = nodes.above >= 0
    assert (made.scores[below] < made.scores[nodes.above[below]]).all()
    assert len(made.log_q) == len(made.tokens)


def test_a_chain_is_the_trees_first_path_where_that_is_best_and_rows_do_not_mind_each_other() -> None:
    _, chains = trees(50, 5, 1)
    assert chains.parents.tolist() == list(range(-1, 4)) * 50
    guesses, states = bundled(), np.arange(1, 41, dtype=np.uint64)
    guesser, rng = Guesser(guesses, MODEL, 7), np.random.default_rng(1)
    subjects = rng.integers(0, len(guesses.subjects), 40)
    depths, widths = rng.integers(0, 5, 40).astype(np.int32), rng.integers(1, 8, 40).astype(np.int32)
    together = guesser.trees(states, subjects, depths, widths)
    for row in range(40):
        one = slice(row, row + 1)
        alone = guesser.trees(states[one], subjects[one], depths[one], widths[one])
        mine = slice(int(together.offsets[row]), int(together.offsets[row + 1]))
        assert alone.tokens.tolist() == together.tokens[mine].tolist()
        assert alone.parents.tolist() == together.parents[mine].tolist()
        assert Nodes.of(alone).depth.max(initial=0) == depths[row]


def test_trees_come_of_them_through_the_port() -> None:
    costs, clock = CostTable.load(profile.costs_file("emulated-70b-4x80g")), VirtualClock()
    drafter = EmulatedDrafter(costs, MODEL, clock, name="draft_emulated", rates={}, guesses=bundled())
    one, prompt = np.ones(1, np.int32), np.arange(400, 410, dtype=np.int32)

    opening = Open(1, prompt, 10, Sampling())

    def drafted(width: int, sequence: int) -> tuple[Trees, float]:
        started = clock.now()
        known = one, 10 * one, np.zeros(2, np.int32), prompt[:0]
        work = DraftWork(*known, 4 * one, width * one, 0 * one, opens=(opening,) * (sequence == 1), sequence=sequence)
        return drafter.draft(work).trees, clock.now() - started

    drafted(1, 1)
    (chain, fast), (tree, slow) = drafted(1, 2), drafted(3, 3)
    assert (len(chain.tokens), len(tree.tokens)) == (4, 12)
    assert slow > fast, "a step over more lanes takes longer"


@pytest.mark.parametrize(
    "text", ["", "{}", '{"covey_guesses": 2, "subjects": {}}', '{"covey_guesses": 1, "subjects": {}}']
)
def test_a_file_that_holds_no_tables_is_a_named_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(SettingError, match=r"broken\.json"):
        Guesses.load(path)

"""A small language model as a drafter: caches per tag, catch-up, chains and trees.

One call of `NeuralDrafter.draft`:

    update    frees, opens and deltas; accepted proposals of the last call keep their keys
    catch up  packed passes over rows that are far behind, within the call's budget (`catch_up.py`)
    propose   the last pending tokens and all steps of all rows together (`stepper.py`)

A head (`covey.models.heads`) reads the target's states with its tokens. A text's first token has no state and is left
out. So a head's texts and positions begin one token later. Accepted drafts of a head get new keys from the target's
states.

Knows no Triton; `backends/drafter/model.py` puts it behind messages. Penalties, minimum length and bad words are not
applied: a proposal need not be right, only likely.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from covey.contracts.profile import DrafterSettings
from covey.contracts.types import (
    NO_INTS,
    NO_STATES,
    DrafterInfo,
    DraftReply,
    DraftWork,
    Ints,
    Open,
    RowStatus,
    Rule,
    Sampling,
    Trees,
)
from covey.drafters.catch_up import Piece, read
from covey.drafters.opening import open_drafter, open_head
from covey.drafters.proposing import Lattice, Rows, propose_trees
from covey.drafters.sessions import Session, readable
from covey.kv.pool import BlockPool
from covey.kv.sequences import Sequences
from covey.models.stepper import Call, Stepper
from covey.noise.noise import Index
from covey.sampling.settings import SettingsTable
from covey.text.grammar import Grammar, Grammars
from covey.trees.joining import joined
from covey.wire.batch import batched, parted
from covey.wire.ledger import Ledger

if TYPE_CHECKING:
    from covey.runtimes.resizing import AnyModel

TOGETHER = 48  # most pending tokens of a call in its first step, padding included


class NeuralDrafter:
    """Implements `covey.contracts.ports.Drafter`. Owns the model, the pool and every tag's tokens."""

    def __init__(
        self,
        model: AnyModel,
        stepper: Stepper,
        settings: DrafterSettings,
        *,
        name: str,
        identity: str = "",
        folder: str = "",
        state_width: int = 0,
    ) -> None:
        """`folder` has the tokenizer. A head's states have `state_width` numbers."""
        self._state_width, self._first = state_width, int(state_width > 0)
        self._model = model
        self._stepper = stepper
        self._limits = settings
        self._sequences = Sequences(BlockPool(model.blocks), model.block_size, reuse=False)
        self._table = SettingsTable()
        self._grammars = Grammars(folder, model.vocab_size)
        self._ledger: Ledger[Session, DraftReply] = Ledger(self._open, self._close)
        self._info = DrafterInfo(
            model=name,
            vocab_size=model.vocab_size,
            max_positions=model.max_positions,
            epoch=self._ledger.epoch,
            resident_bytes=0,  # its process adds its own
            identity=identity,
            state_width=state_width,
        )

    @classmethod
    def load(
        cls,
        folder: str | Path,
        settings: DrafterSettings,
        *,
        name: str,
        depth: int = 0,
        vocab_size: int = 0,
        target: str | Path | None = None,
    ) -> NeuralDrafter:
        """Return the drafter in `folder`; few calls will ask for more than `depth`. It proposes only tokens that a
        target of `vocab_size` tokens has; 0: any. With `target`, the folder of that model, it is a head."""
        path = Path(folder)
        if target is None:
            opened = open_drafter(path, settings, depth, vocab_size)
        else:
            opened = open_head(path, Path(target), settings, depth)
        return cls(
            *(opened.model, opened.stepper, settings),
            name=name,
            identity=opened.identity,
            folder=str(target or folder),  # a head has its target's tokens, and seldom their names
            state_width=opened.state_width,
        )

    def info(self) -> DrafterInfo:
        return self._info

    def warm_up(self) -> None:
        """Make the first calls as fast as later ones: run a chain and a tree under a separate tag."""
        tag, prompt = -1, np.zeros(min(64, self._model.max_positions // 2), np.int32)
        for sampling in (Sampling(), Sampling(temperature=1.0)):
            for width in (1, 2):
                opening = Open(tag, prompt, len(prompt) // 2, sampling)
                self.draft(
                    DraftWork(
                        tags=np.asarray([tag], np.int32),
                        keep=np.asarray([len(prompt)], np.int32),
                        offsets=np.zeros(2, np.int32),
                        tokens=NO_INTS,
                        depth=np.asarray([3], np.int32),
                        width=np.asarray([width], np.int32),
                        rounds=np.zeros(1, np.int32),
                        opens=(opening,),
                        state_offsets=np.asarray([0, self._first * (len(prompt) - 1)], np.int32),
                        states=np.zeros((self._first * (len(prompt) - 1), self._state_width), np.uint16),
                    )
                )
        self._ledger.clear()

    def check(self) -> None:
        """Raise AssertionError unless every block is in its place."""
        self._sequences.check()
        assert len(self._ledger) == len(self._sequences), "tags and tables differ"

    def draft(self, work: DraftWork) -> DraftReply:
        return self._ledger.once(work, self._draft)

    def draft_together(self, works: Sequence[DraftWork]) -> list[DraftReply]:
        return self._ledger.together(list(works), self._draft_together)

    def _draft_together(self, works: list[DraftWork]) -> list[DraftReply]:
        return [self._draft(works[0])] if len(works) == 1 else parted(self._draft(batched(works), works), works)

    def _draft(self, work: DraftWork, works: Sequence[DraftWork] = ()) -> DraftReply:
        """Draft for `work`. If that was joined from several messages, these are `works`."""
        started = time.perf_counter()
        works = works or (work,)
        updated = [self._update(each) for each in works]
        status = np.concatenate([each for each, _ in updated])
        rows = [session for _, sessions in updated for session in sessions]
        ready, pieces = self._catch_up(work, works, status, rows)
        before = time.perf_counter()
        read(self._model, pieces, states=self._first > 0)
        catch_up = time.perf_counter() - before if pieces else 0.0
        trees = self._propose(work, ready)
        seen = [0 if session is None else session.num_tokens + self._first for session in rows]
        return DraftReply(
            status=status,
            seen=np.asarray(seen, np.int32),
            trees=trees,
            epoch=self._info.epoch,
            catch_up_seconds=catch_up,
            draft_seconds=time.perf_counter() - started - catch_up,
        )

    def _update(self, work: DraftWork) -> tuple[Ints, list[Session | None]]:
        """Bring every tag's tokens up to date. Rows whose known text is too short are STALE."""
        self._ledger.update(work)
        status = np.zeros(len(work.tags), np.int32)
        rows: list[Session | None] = []
        sources, destinations = [], []
        bounds, keeps = work.offsets.tolist(), (work.keep - self._first).tolist()
        opened = {opening.tag for opening in work.opens}
        vocab_size = min(self._model.vocab_size, work.vocab_size or self._model.vocab_size)
        for row, tag in enumerate(work.tags.tolist()):
            session = self._ledger.find(work, tag, keeps[row]) if keeps[row] >= 0 else None
            if session is None:
                status[row] = RowStatus.STALE
                rows.append(None)
                continue
            session.vocab_size = vocab_size
            session.keep(keeps[row])
            source, destination = session.append(work.tokens[bounds[row] : bounds[row + 1]])
            told = session.num_tokens - (0 if tag in opened else keeps[row])
            if self._first and not self._add_states(work, row, session, told):
                status[row] = RowStatus.STALE
                rows.append(None)
                continue
            if len(source):
                sources.append(source)
                destinations.append(destination)
            rows.append(session)
        if sources:
            self._model.copy_slots(np.concatenate(sources), np.concatenate(destinations))
        return status, rows

    def _add_states(self, work: DraftWork, row: int, session: Session, told: int) -> bool:
        """Return whether the message has the states of all its new tokens."""
        offsets = work.state_offsets[row : row + 2].tolist()
        states = work.states[slice(*offsets)] if len(offsets) == 2 else work.states[:0]
        if len(states) != told or (told and states.shape[1] != self._state_width):
            session.states = NO_STATES  # they no longer belong to its last tokens
            return False
        return session.add_states(states, TOGETHER)

    def _open(self, opening: Open) -> Session:
        if self._first:
            opening = replace(opening, tokens=opening.tokens[1:], num_prompt=max(0, opening.num_prompt - 1))
        slot = self._table.add(opening.sampling, opening.num_prompt)
        self._grammars.add(slot, opening.sampling)
        rejection = opening.sampling.rule is Rule.REJECTION
        return Session(self._sequences.open(opening, slot), rejection, self._model.vocab_size)

    def _close(self, session: Session, _ended: bool) -> None:
        self._sequences.close(session.sequence)
        self._table.remove(session.sequence.settings)
        self._grammars.remove(session.sequence.settings)

    def _catch_up(
        self, work: DraftWork, works: Sequence[DraftWork], status: Ints, rows: list[Session | None]
    ) -> tuple[list[tuple[int, Session]], list[Piece]]:
        """Return the rows that can propose, and the pieces to read first. After them every row fits into the first
        step. Rows beyond the budget or without room are SKIPPED."""
        budget = self._limits.catch_up_tokens
        depths, widths = work.depth.tolist(), work.width.tolist()
        senders = [each for each in works for _ in range(len(each.tags))]
        few = self._together([session for session in rows if session is not None])
        ready, pieces = [], []
        for row, session in enumerate(rows):
            if session is None:
                continue
            depth = depths[row]
            pending = session.pending if depth else session.unread
            leave = 0 if not depth else pending if pending <= few else 1
            count = min(pending - leave, budget)
            budget -= count
            behind = count < pending - leave or not session.num_tokens
            nodes = 0 if behind else depth * widths[row]
            if session.num_tokens + depth > self._model.max_positions or not self._make_room(
                works, senders[row], session, session.num_tokens + nodes
            ):
                status[row] = RowStatus.SKIPPED
                continue
            if count > 0:
                pieces.append(Piece(session, count))
            if behind:
                status[row] = RowStatus.SKIPPED
            elif depth:
                ready.append((row, session))
        return ready, pieces

    def _together(self, sessions: list[Session]) -> int:
        """Return how many pending tokens per row the first step can take."""
        if not sessions:
            return 1
        shortest = min(len(session.states) if self._first else session.num_tokens for session in sessions)
        return min(max(2, TOGETHER // len(sessions)), shortest, TOGETHER)

    def _make_room(self, works: Sequence[DraftWork], work: DraftWork, session: Session, columns: int) -> bool:
        """Reserve `columns` slots for a row of `work`, evicting the tags that drafted longest ago. Return False on
        failure."""
        while not self._sequences.reserve(session.sequence, columns):
            if not self._ledger.evict(works, work, lambda each: bool(each.sequence.blocks)):
                return False
        return True

    def _propose(self, work: DraftWork, ready: list[tuple[int, Session]]) -> Trees:
        """Return all rows' trees. Rows of one width and vocabulary go through the model together, the deepest first."""
        depths, widths = work.depth.tolist(), work.width.tolist()
        alike: dict[tuple[int, int], list[tuple[int, Session]]] = {}
        for row, session in ready:
            width = 1 if session.rejection else widths[row]
            alike.setdefault((width, session.vocab_size), []).append((row, session))
        groups = []
        for (width, _), group in alike.items():
            group.sort(key=lambda item: -depths[item[0]])
            lanes = max(width, *(session.pending for _, session in group))  # lanes of a row in a step
            most = max(1, self._model.max_pass_tokens // lanes)
            for start in range(0, len(group), most):
                part = group[start : start + most]
                rows = np.asarray([row for row, _ in part], np.int64)
                lattice = self._group(work, rows, [session for _, session in part], width)
                groups.append((rows.tolist(), lattice.trees()))
        return joined(len(work.tags), groups)

    def _group(self, work: DraftWork, rows: Index, sessions: list[Session], width: int) -> Lattice:
        depths = work.depth[rows].astype(np.int64)
        pending = max([session.pending for session in sessions])
        levels = int(depths[0]) - 1  # the last level's keys are not needed
        lengths = np.asarray([session.num_tokens for session in sessions], np.int64)
        context = (lengths - pending).astype(np.int32)
        tables = np.zeros((len(rows), max([len(session.sequence.table) for session in sessions])), np.int32)
        slots = np.full((len(rows), pending + levels * width), self._model.padding_slot, np.int64)
        tokens = np.empty((len(rows), pending), np.int64)
        for index, (session, depth) in enumerate(zip(sessions, depths.tolist())):
            sequence, table = session.sequence, session.sequence.table
            tables[index, : len(table)] = table
            own = sequence.slots[sequence.num_tokens - pending : sequence.num_tokens + (depth - 1) * width]
            session.written = 0 if self._first else (depth - 1) * width
            slots[index, : len(own)] = own
            tokens[index] = sequence.buffer[sequence.num_tokens - pending : sequence.num_tokens]
            sequence.num_cached_tokens = sequence.num_tokens
        states = np.stack([each.states_of(pending, pending) for each in sessions]) if self._first else None
        ahead = np.concatenate([np.arange(-pending, 0), np.arange(levels * width) // width])
        positions = np.minimum(lengths[:, None] + ahead, self._model.max_positions - 1)  # of each row's columns
        self._stepper.begin(Call(tables, context, positions, slots, states))
        lattice = propose_trees(
            self._stepper,
            self._table,
            Rows(
                pending=readable(tokens, self._model.vocab_size),
                settings=np.asarray([session.sequence.settings for session in sessions], np.int64),
                positions=lengths + self._first,
                depths=depths,
                width=width,
                vocab_size=sessions[0].vocab_size,
                rejection=np.flatnonzero([session.rejection for session in sessions]),
                rounds=work.rounds[rows].astype(np.int64),
                q_rows=work.q_rows,
                log_q=work.log_q,
                grammars=self._constraints(sessions),
            ),
        )
        drafted = zip(sessions, lattice.tokens.tolist(), lattice.parents.tolist(), (depths * width).tolist())
        for session, proposed, parents, nodes in drafted:
            session.tokens, session.parents = proposed[:nodes], parents[:nodes]
        return lattice

    def _constraints(self, sessions: list[Session]) -> dict[int, Grammar]:
        """Return the grammars of constrained rows by row, each advanced to the end of its text."""
        found = {}
        for index, session in enumerate(sessions):
            sequence = session.sequence
            grammar = self._grammars.get(sequence.settings)
            if grammar is not None:
                grammar.follow(sequence.tokens[self._table.num_prompt[sequence.settings] :])
                found[index] = grammar
        return found


def load(folder: str | Path, settings: DrafterSettings, *, name: str, depth: int, vocab_size: int) -> NeuralDrafter:
    """Load a drafter (see `NeuralDrafter.load`) and make it ready to answer at full speed."""
    drafter = NeuralDrafter.load(folder, settings, name=name, depth=depth, vocab_size=vocab_size)
    drafter.warm_up()
    return drafter


def load_head(
    folder: str | Path, target: str | Path, settings: DrafterSettings, *, name: str, depth: int
) -> NeuralDrafter:
    """Load the head in `folder`, for the model in `target`, and make it ready to answer at full speed."""
    drafter = NeuralDrafter.load(folder, settings, name=name, depth=depth, target=target)
    drafter.warm_up()
    return drafter

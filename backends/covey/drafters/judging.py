"""Reads the pending tokens of texts and judges them on the way: would this drafter have drawn the token that the text
has?

A token's logits draw the next position, with its request's noise. So a position is judged after its preceding token was
read, or against an earlier proposal. The draw after the last token waits in the session until that position is known.
Draws respect bias and grammar but no penalties, like proposals.

It is cheaper to tell whether the text's token won than which token won (`sampling/winning.py`). A first test by the
bound on the noise does not pay: at 4,096 tokens of a small model it excludes 0 to 9 % of them.

Under the rejection rule there is no draw to compare, so only the prompt is judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from covey.contracts.types import Hit, Ints, RowJudged
from covey.drafters.sessions import Session, readable
from covey.models.lanes import Lanes, Pass
from covey.noise.arrays import Logits, beside, host, log_softmax, plain, select
from covey.noise.noise import Index
from covey.sampling.bias import biased
from covey.sampling.constraint import constrained
from covey.sampling.drawing import draw_unpenalised
from covey.sampling.settings import SettingsTable
from covey.sampling.truncation import Flags
from covey.sampling.winning import wins
from covey.text.grammar import Grammars, Words

if TYPE_CHECKING:
    from covey.runtimes.resizing import AnyModel

LOGITS = 1 << 24  # most numbers in the logits of one pass
LEAST = -69.0  # log q of a token that the model excludes


@dataclass(slots=True, eq=False)
class Piece:
    """The next `count` pending tokens of a session, to be read and, from position `judge_from` on, judged (-1: none).
    `hits` are for the last positions of the text that these tokens predict, `draws` holds the only draw of the next
    token, and `log_q` is for prompt tokens."""

    session: Session
    count: int
    judge_from: int = -1
    hits: list[int] = field(default_factory=list)
    draws: list[int] = field(default_factory=list)
    log_q: list[float] = field(default_factory=list)


class TextReader:
    """Runs passes over a model that store keys. `table` has the sessions' settings. The texts of a head lack their
    first token; then `first` is 1."""

    def __init__(self, model: AnyModel, table: SettingsTable, grammars: Grammars, first: int = 0) -> None:
        self._model = model
        self._table = table
        self._grammars = grammars
        self._first = first

    def read(self, pieces: Sequence[Piece]) -> None:
        """Compute the keys of all pieces, and the draws of those to judge."""
        room, left = self._model.max_pass_tokens, [(piece, piece.count) for piece in pieces if piece.count]
        with_logits = min(room, max(1, LOGITS // self._model.vocab_size))
        columns = min((piece.session.vocab_size for piece in pieces), default=0)  # texts to judge have one sender
        while left:
            wanted = [self._wanted(piece, min(count, room)) for piece, count in left]
            free = with_logits if any(map(len, wanted)) else room
            now, later = [], []
            for piece, count in left:
                take = min(count, free)
                free -= take
                if take:
                    now.append((piece, take))
                if count > take:
                    later.append((piece, count - take))
            wanted = [self._wanted(piece, take) for piece, take in now]
            work = _packed(now, wanted, self._model.vocab_size, states=self._first > 0)
            logits = plain(self._model.forward(work)[:, :columns])
            self._note([piece for piece, _ in now], wanted, logits)
            for piece, take in now:
                piece.session.sequence.num_cached_tokens += take
            left = later

    def _wanted(self, piece: Piece, count: int) -> Index:
        """Return the positions that the next `count` tokens shall predict: known prompt tokens and, except under the
        rejection rule, generated ones and the next one."""
        session, start = piece.session, piece.session.read
        if piece.judge_from < 0:
            return np.zeros(0, np.int64)
        positions: Index = np.arange(max(piece.judge_from, start + 1), start + count + 1)
        prompt, length = int(self._table.num_prompt[session.sequence.settings]), session.num_tokens
        found: Index = positions[(positions < min(prompt, length)) | ((positions >= prompt) & (not session.rejection))]
        return found

    def _note(self, pieces: list[Piece], wanted: list[Index], logits: Logits) -> None:
        sizes = [len(each) for each in wanted]
        if not any(sizes):
            return
        positions, whose = np.concatenate(wanted), np.repeat(np.arange(len(pieces)), sizes)
        places = positions + self._first  # positions in the request's own text
        settings = np.asarray([piece.session.sequence.settings for piece in pieces], np.int64)[whose]
        lengths = np.asarray([piece.session.num_tokens for piece in pieces], np.int64)[whose]
        prompt = np.flatnonzero(positions < self._table.num_prompt[settings])
        drawn = np.flatnonzero((positions >= self._table.num_prompt[settings]) & (positions < lengths))
        # The next token is unknown and not looked at.
        texts = [piece.session.sequence.tokens for piece in pieces]
        text = np.concatenate([each[np.minimum(at, len(each) - 1)] for each, at in zip(texts, wanted)]).astype(np.int64)
        known, text = text < logits.shape[1], readable(text, logits.shape[1])
        if len(prompt):
            for row, log_q in zip(whose[prompt].tolist(), _log_q(logits, prompt, text[prompt], known[prompt])):
                pieces[row].log_q.append(log_q)
        if len(drawn):
            mine = self._steered(logits, drawn, settings, positions, texts, whose)
            hits = known[drawn] & wins(mine, text[drawn], self._table, settings[drawn], places[drawn])
            for row, hit in zip(whose[drawn].tolist(), hits.tolist()):
                pieces[row].hits.append(Hit.HIT if hit else Hit.MISS)
        ahead = np.flatnonzero(positions == lengths)
        if len(ahead):
            mine = self._steered(logits, ahead, settings, positions, texts, whose)
            draws = draw_unpenalised(mine, self._table, settings[ahead], places[ahead])
            for row, token in zip(whose[ahead].tolist(), draws.tolist()):
                pieces[row].draws.append(token)

    def _steered(
        self,
        logits: Logits,
        rows: Index,
        settings: Index,
        positions: Index,
        texts: list[Ints],
        whose: Index,
    ) -> Logits:
        """Return the given rows' logits with their requests' changes. Each row draws a position of its text."""
        part, where, found = select(logits, rows), list[int](), list[Words | None]()
        for at in np.flatnonzero(self._table.constrained[settings[rows]]).tolist():
            row = int(rows[at])
            grammar = self._grammars.get(int(settings[row]))
            if grammar is not None:
                grammar.follow(texts[whose[row]][self._table.num_prompt[settings[row]] : positions[row]])
                allowed = grammar.after(())
                if allowed is not None:
                    where.append(at)
                    found.append(allowed)
        if where:
            part = constrained(part, np.asarray(where, np.int64), found)
        return biased(part, self._table, settings[rows])


def judged(piece: Piece, table: SettingsTable) -> RowJudged:
    """Return the judgement of a row's text after reading. Leaves the last draw in the session."""
    session, hits, first = piece.session, piece.hits, piece.session.drawn
    own = session.own() if piece.judge_from >= 0 and not session.rejection else []
    proposed: list[int] = [
        Hit.HIT if mine == token else Hit.MISS for mine, token in zip(own, session.sequence.tokens[first:].tolist())
    ]
    if piece.count:
        session.drew(piece.draws)
    start = min(session.read + 1, session.num_tokens) - len(hits)
    if not hits:
        hits = proposed
    elif first <= start <= first + len(proposed):
        hits = proposed[: start - first] + hits
    else:
        first = start
    due = max(piece.judge_from, int(table.num_prompt[session.sequence.settings]), first)
    hits = hits[due - first :]
    return RowJudged(session.read, due if hits else session.read, hits, sum(piece.log_q), len(piece.log_q))


def _log_q(logits: Logits, rows: Index, tokens: Index, known: Flags) -> list[float]:
    """Return the log-probabilities of tokens at temperature 1; LEAST for those that are not `known`."""
    part = log_softmax(select(logits, rows))
    found = host(part[beside(np.arange(len(rows)), part), beside(tokens, part)])
    least: list[float] = np.where(known, np.fmax(found, LEAST), LEAST).tolist()
    return least


def _packed(pieces: list[tuple[Piece, int]], wanted: list[Index], vocab_size: int, *, states: bool) -> Pass:
    """Return the pass over each session's next pending tokens, with logits at the wanted positions. The model has
    `vocab_size` tokens."""
    tokens, positions, slots, lengths, out = [], [], [], [], []
    tables = np.zeros((len(pieces), max(len(piece.session.sequence.table) for piece, _ in pieces)), np.int32)
    done = 0
    for index, (piece, count) in enumerate(pieces):
        sequence, start = piece.session.sequence, piece.session.read
        tokens.append(sequence.buffer[start : start + count])
        positions.append(np.arange(start, start + count, dtype=np.int32))
        slots.append(sequence.slots[start : start + count])
        lengths.append(start + count)
        tables[index, : len(sequence.table)] = sequence.table
        out.append(wanted[index] - (start + 1) + done)
        done += count
    offsets = np.cumsum([0, *(count for _, count in pieces)]).astype(np.int32)
    lanes: Lanes = Lanes(offsets, np.asarray(lengths, np.int32), tables)
    outs: Ints = np.concatenate(out).astype(np.int32)
    read = [piece.session.states_of(piece.session.unread, count) for piece, count in pieces] if states else []
    given = np.concatenate(read) if read else None
    ids = readable(np.concatenate(tokens), vocab_size)
    return Pass(ids, np.concatenate(positions), np.concatenate(slots), lanes, outs, given)

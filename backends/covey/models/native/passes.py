"""The memory of a model's passes, and the arguments that the compiled loops take for each pass."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from covey.contracts.types import Floats, Ints
from covey.models.lanes import Lanes, Pass, Stop
from covey.models.native import LANES, SMALL, attention, matmul, stages, states, tiles
from covey.models.native.architecture import Architecture
from covey.models.native.attention import SLOTS, Compared, Seen
from covey.models.native.chains import Columns, Draws
from covey.models.native.matmul import COLUMNS, Multiplied, Rows
from covey.models.native.pool import KeyValuePool
from covey.models.native.stages import AROUND, STAGES, Asked, Shape, Work
from covey.models.native.states import Made
from covey.models.native.tasks import LINE, Team
from covey.models.native.tiles import AMX, BYTES, FLOATS, GROUP, PAIRS, WIDENED, Tile
from covey.models.native.weights import Weights, panels, whole, words
from covey.models.stepper import Race
from covey.noise.noise import token_words

if TYPE_CHECKING:
    from covey.models.heads import Taps

TOGETHER = 12  # rows of an attention task: queries times the heads that share keys
MADE = 64  # most states made at once


class Passes:
    """Owns a model's weights, its pool, and the memory that all its passes share."""

    def __init__(
        self,
        of: Architecture,
        dtype: str,
        *,
        blocks: int,
        threads: int,
        most_tokens: int,
        most_blocks: int = 0,
        taps: Taps | None = None,
        columns: Ints | None = None,
    ) -> None:
        """A pass has at most `most_tokens` tokens. `columns` are the tokens of the logits if these are not all."""
        self.of, self.threads, self._most_tokens = of, threads, most_tokens
        kind, seen = kinds(of, dtype)
        self.weight_type = {BYTES: SMALL, FLOATS: "float32"}.get(kind, "bfloat16")
        kept, layers = (0, ()) if taps is None else (taps.numbers, taps.layers)
        self.pool = KeyValuePool(of.layers, of.kv_heads, of.head_dim, seen, blocks=blocks, most=most_blocks, taps=kept)
        self._weights = Weights(of, kind, threads)
        self._shape = _shape(of, kind, seen)
        self._stages = AROUND + STAGES * of.layers
        self._work = _work(of, self._shape, most_tokens, threads)
        self._tapped_layers = np.asarray(layers, np.int32)
        self.state_width = 0 if taps is None else len(taps.fc)
        self._made = None if taps is None else _made(taps, self._states_by(kind, seen), threads)
        self._columns = columns
        self._turns = np.zeros((0, 2, of.head_dim // 2), np.float32)  # of positions up to the highest so far
        self._logits: Floats = np.zeros((0, of.vocab_size), np.float32)

    def of_pass(self, work: Pass, stop: Stop | None = None) -> tuple[Any, ...]:
        """Return the arguments of `run` for a pass, for the first thread."""
        asked, pool = self._asked(work), self.pool
        given = self._shape, self._weights.held, pool.keys, pool.values, pool.taps, self._work, asked
        return self._team(self._stages, stop=stop), *given, self._logits[: len(work.out)]

    def of_chain(self, first: Pass, slots: Ints, positions: Ints, race: Race) -> tuple[Any, ...]:
        """Return the arguments of `chain`; it writes to the last two."""
        rows, depth, lanes = len(first.out), len(race.words), first.lanes
        assert isinstance(lanes, Lanes), "the native runtime reads lanes, not windows"
        asked = later = self._asked(first)
        if depth > 1:
            every, nothing = np.arange(rows, dtype=np.int32), np.zeros(rows, np.int32)
            seen = Lanes(np.arange(rows + 1, dtype=np.int32), lanes.lengths.astype(np.int32), lanes.tables)
            later = self._asked(Pass(nothing.copy(), nothing, nothing.copy(), seen, every))
        turns = self._turned(int(positions.max(initial=0)))[positions]
        norm = self._weights.held.norms[-1] if self.of.normed_output else np.zeros(0, np.float32)
        columns = Columns(np.ascontiguousarray(slots, np.int32), turns, lanes.tables.shape[1] * SLOTS, norm)
        hot = race.temperatures > 0
        scales = np.where(hot, 1 / np.where(hot, race.temperatures, 1), 0).astype(np.float32)
        ids, hashed = self._drafted
        if race.vocab_size is not None:
            known = np.searchsorted(ids, race.vocab_size)  # a head's columns are some ids, ascending
            ids, hashed = ids[:known], hashed[:known]
        scores = np.empty((self.threads, len(ids)), np.float32)
        draws = Draws(scales, np.ascontiguousarray(race.words), hashed, ids, scores)
        tokens, shares = np.empty((rows, depth), np.int32), np.empty((rows, depth), np.float32)
        pool, logits = self.pool, self._logits[:rows]
        given = self._shape, self._weights.held, pool.keys, pool.values, pool.taps, self._work, asked, later
        return self._team(depth, self._stages + 2), *given, columns, draws, logits, tokens, shares

    def of_states(self, slots: Ints) -> tuple[Any, ...]:
        """Return the arguments of `make` for the states of at most `MADE` slots; it writes to the last one."""
        assert self._made is not None, "only a model with taps makes states"
        found = np.empty((len(slots), self.state_width), np.uint16)
        return self._team(states.STAGES), self._made, self.pool.taps, np.ascontiguousarray(slots, np.int32), found

    def outputs(self, tokens: Ints) -> Floats:
        """Return the last layer's output [tokens, width] for these tokens of the last pass. A head's later steps read
        it in place of a state."""
        found = self._work.x[tokens]
        if self.of.normed_output:
            scale = 1 / np.sqrt(np.square(found).mean(axis=-1, keepdims=True) + np.float32(self.of.eps))
            found = found * scale * self._weights.held.norms[-1]
        return found

    def unread(self) -> Pass:
        """Return a pass of one token, whose key no later pass reads."""
        nothing, one = np.zeros(1, np.int32), np.ones(1, np.int32)
        lanes = Lanes(np.array([0, 1], np.int32), one, np.array([[self.pool.padding_slot // SLOTS]], np.int32))
        return Pass(nothing, nothing, np.array([self.pool.padding_slot], np.int32), lanes, nothing)

    @cached_property
    def _drafted(self) -> tuple[Ints, Ints]:
        """Return the token of each column of the logits, and its word in the noise's hash."""
        ids = np.arange(self.of.vocab_size, dtype=np.int32) if self._columns is None else self._columns
        return ids, token_words(int(ids[-1]) + 1)[ids]

    def _team(self, *counted: int, stop: Stop | None = None) -> Team:
        """Return the first thread's place in a team, with counters for these stages, or for steps and their stages."""
        counters = np.zeros((*counted, LINE * (self.threads + 1)), np.int64)
        return Team(counters, 0, self.threads, np.zeros(1, np.int64) if stop is None else stop)

    def _asked(self, work: Pass) -> Asked:
        """Return a pass in the form that `run` takes, with room for its logits. Raises ValueError if it is too
        large."""
        work.check_tokens(len(self._weights.held.embedding))
        if work.size > self._most_tokens:
            raise ValueError(f"a pass of {work.size} tokens; this model was built for {self._most_tokens}")
        lanes, rows = work.lanes, len(work.out)
        assert isinstance(lanes, Lanes), "the native runtime reads lanes, not windows"
        if lanes.lengths.max(initial=0) > lanes.tables.shape[1] * SLOTS:
            raise ValueError(f"{lanes.lengths.max()} keys do not fit {lanes.tables.shape[1]} blocks of {SLOTS}")
        if rows > len(self._logits):
            self._logits = np.empty((rows, self.of.vocab_size), np.float32)
        turns = self._turned(int(work.positions.max(initial=0)))[work.positions]
        every = np.arange(work.size, dtype=np.int32)
        seen = _seen(lanes, every, self._shape.heads // self._shape.kv_heads)
        tokens, slots, wanted = (np.ascontiguousarray(each) for each in (work.tokens, work.slots, work.out))
        states = np.zeros((work.size if self._shape.paired else 0, self.of.width), np.float32)
        if work.states is not None:
            states[:] = work.states
        # Pass whole arrays: Numba would compile anew for slices.
        return Asked(tokens, slots, turns, every, wanted, seen, states, self._tapped_layers)

    def _states_by(self, kind: int, seen: int) -> Multiplied:
        """Return the products that make states. A model of bytes makes them in the numbers of its scores."""
        return Multiplied.of(seen, tiles.addresses(matmul.tiles_of(seen))) if kind == BYTES else self._shape.products

    def _turned(self, last: int) -> Floats:
        """Return cosines and sines of the positions up to `last` or more."""
        known = len(self._turns)
        if last >= known:
            at = np.arange(known, min(self.of.max_positions, max(last + 1, 2 * known, 256)), dtype=np.float32)[:, None]
            angles = (at * np.asarray(self.of.frequencies, np.float32)).astype(np.float64)
            turns = np.stack([np.cos(angles), np.sin(angles)], axis=1) * self.of.factor
            self._turns = np.concatenate([self._turns, turns.astype(np.float32)])
        return self._turns


def kinds(of: Architecture, dtype: str) -> tuple[int, int]:
    """Return the kinds of multiplication that this CPU uses for a model's panels and for its scores. For products in
    float32, panels of a bfloat16 checkpoint stay in two bytes. The results are the same bits, from half the memory."""
    if dtype == "float32":
        stored = {tensor.dtype for tensor in of.weights.values() if len(tensor.shape) == 2}
        return WIDENED if stored == {"BF16"} else FLOATS, FLOATS
    words = PAIRS if tiles.has(PAIRS) else WIDENED
    if dtype == SMALL and tiles.has(BYTES):
        return BYTES, words
    return AMX if tiles.has(AMX) else words, words


def _shape(of: Architecture, kind: int, seen: int) -> Shape:
    widths = whole(of.width), whole(of.heads * of.head_dim), whole(of.inner)
    at = tiles.addresses(tiles_of(kind, seen))
    multiplied, compared = Multiplied.of(kind, at), Compared.of(seen, whole(of.head_dim, LANES), at)
    own = of.layers, of.width, of.heads, of.kv_heads, of.head_dim, of.inner, of.vocab_size, of.eps
    inputs, paired = whole(of.inputs * of.width), of.inputs == 2
    return Shape(multiplied, compared, *own, widths, inputs, int(paired), int(of.normed_residual))


def _made(taps: Taps, products: Multiplied, threads: int) -> Made:
    fc = taps.fc if products.kind == FLOATS else words(taps.fc)
    width, numbers = whole(taps.numbers), taps.numbers
    norms = [norm.reshape(-1) for norm in taps.norms]
    return Made(
        products,
        panels(fc, products.kind).copy(),
        width,
        np.array(norms, np.float32).reshape(len(norms), numbers),
        np.array([norm.shape[1] for norm in taps.norms], np.int64),
        taps.eps,
        _zeros((threads, numbers)),
        _rows(MADE, width),
        _zeros((threads, MADE, COLUMNS)),
    )


def tiles_of(kind: int, seen: int) -> frozenset[Tile]:
    """Return the tiles of a model with these kinds of products and scores."""
    scores, sums = attention.tiles_of(seen)
    return matmul.tiles_of(kind) | {*scores, *sums}


def _zeros(shape: tuple[int, ...], number: type[np.generic] = np.float32) -> npt.NDArray[Any]:
    """Return zeros that begin with a cache line: a vector that lies in two is read and written at half the speed."""
    size = math.prod(shape) * np.dtype(number).itemsize
    memory = np.zeros(size + tiles.LINE, np.uint8)
    first = -memory.ctypes.data % tiles.LINE
    return memory[first : first + size].view(number).reshape(shape)


def _rows(tokens: int, width: int) -> Rows:
    stride = (4 * width // tiles.LINE | 1) * tiles.LINE  # odd, so that rows do not share few sets of the first cache
    memory = _zeros((tokens, stride), np.uint8)
    factors = _zeros((tokens, 2 * width // GROUP))
    return Rows(memory.view(np.uint16), memory.view(np.float32), memory.view(np.int8), factors, factors.view(np.int32))


def _work(of: Architecture, shape: Shape, tokens: int, threads: int) -> Work:
    group, vectors = of.heads // of.kv_heads, whole(of.head_dim, LANES)
    rows = max(TOGETHER, group)
    number: type[np.generic] = np.uint16 if shape.attention.kind == PAIRS else np.float32
    stored: type[np.generic] = np.float32 if shape.attention.kind == FLOATS else np.uint16
    paths = tokens // SLOTS + 3  # blocks for a path's last keys
    return Work(
        x=_zeros((tokens, of.width)),
        a=_rows(tokens, max(shape.inputs, *shape.widths[:2])),
        b=_rows(tokens, shape.widths[2]),
        y=_zeros((tokens, (of.heads + 2 * of.kv_heads) * of.head_dim)),
        q=_zeros((of.kv_heads, tokens, group, vectors), number),
        heads=_zeros((tokens, of.heads * of.head_dim)),
        tile=_zeros((threads, 2, tokens, GROUP)),
        rows=_zeros((threads, stages.ROWS, of.width)),
        scores=_zeros((threads, rows, whole(of.max_positions, SLOTS))),
        sums=_zeros((threads, rows, vectors + 1)),
        own_keys=_zeros((threads, paths, vectors * SLOTS), stored),
        own_values=_zeros((threads, paths, SLOTS, vectors), stored),
        pair=_zeros((threads, of.inputs * of.width if shape.paired else 0)),
    )


def _seen(lanes: Lanes, every: Ints, group: int) -> Seen:
    """Return the lanes and their tasks. A task takes up to a tile's queries of a lane, or one query if it has a
    tail."""
    none, counts = every[:0], lanes.counts
    tails = np.zeros(lanes.rows + 1, np.int32) if lanes.tail_offsets is None else lanes.tail_offsets
    queries = every if lanes.queries is None else lanes.queries
    together = max(1, TOGETHER // group)
    if lanes.tail_offsets is None and counts.max(initial=0) <= together:  # one task for each lane
        which, firsts, some = np.arange(lanes.rows, dtype=np.int32), np.zeros(lanes.rows, np.int32), counts
    else:
        most = np.where(tails[1:] > tails[:-1], 1, together)
        pieces = -(-counts // most)
        which = np.repeat(np.arange(lanes.rows, dtype=np.int32), pieces)
        number = np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        firsts = number * most[which]
        some = np.minimum(most[which], counts[which] - firsts)
    own = lanes.tails if lanes.tail_offsets is not None else none
    parts = lanes.offsets, lanes.lengths, lanes.tables, queries, tails, own, which, firsts, some
    return Seen(*(np.ascontiguousarray(each, np.int32) for each in parts))

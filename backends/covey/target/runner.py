"""The target in process: sequences and blocks, one pass over the model, draws, verification, commit.

Implements `covey.contracts.ports.Target`. It knows no Triton; `backends/target/model.py` serves it through messages.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from covey.contracts.profile import DrafterSettings, TargetSettings
from covey.contracts.types import (
    LEAST_LOGPROB,
    NO_FLOATS,
    NO_INTS,
    NO_SCORES,
    NO_TOP,
    Ints,
    Open,
    Resized,
    RowStatus,
    Rule,
    Sampling,
    Scores,
    TargetInfo,
    TargetReply,
    TargetWork,
    Trees,
)
from covey.kv.pool import BlockPool
from covey.kv.sequences import Sequence, Sequences
from covey.models import dtypes, heads
from covey.models.identity import files_of, identity, of_model
from covey.models.lanes import Stop, Stoppable
from covey.models.native import SMALL
from covey.noise.arrays import Logits, plain, select
from covey.process import cpu, footprint
from covey.runtimes import budget
from covey.runtimes.choice import NATIVE, TORCH, runtime_of, why_not
from covey.runtimes.compute import Compute
from covey.runtimes.resizing import resize
from covey.sampling.drawing import Context, SettingsTable, draw, log_probabilities
from covey.sampling.likeliest import likeliest
from covey.target.ahead import Ahead, Precomputed
from covey.target.divergence import NO_DIVERGENCE
from covey.target.own_head import OwnHead, Wish
from covey.target.packing import Packing, path_to
from covey.target.verification import Mask, Places, Verified, pick, rows_of, verify
from covey.text.grammar import Grammars
from covey.wire.ledger import Ledger

if TYPE_CHECKING:
    from covey.drafters.neural import NeuralDrafter
    from covey.models.heads import Taps
    from covey.runtimes.resizing import AnyModel

LEFT = 10  # a tenth of the memory that was free is left to others, before kept blocks are
log = logging.getLogger("covey.target")


class TargetRunner:
    """Owns the model, the thread that computes with it, the pool, and every open request's tokens."""

    def __init__(
        self,
        model: AnyModel,
        *,
        blocks: int,
        block_size: int,
        reuse: bool,
        name: str,
        folder: str,
        run_ahead: bool = False,
        identity: str = "",
        compute: Compute | None = None,
        head: NeuralDrafter | None = None,
    ) -> None:
        """`compute` is the thread that loaded the model. `head` drafts in this process (`covey.target.own_head`)."""
        self._model = model
        self._maker = model if isinstance(model, heads.StateMaker) and model.state_width else None
        self._own_head = None if head is None or self._maker is None else OwnHead(head, self._maker)
        self._thread = Compute() if compute is None else compute
        on_cpu = model.device == "cpu"  # a GPU gave all its memory when the model was loaded
        pool = BlockPool(blocks, footprint.Spare(footprint.available() // LEFT)) if on_cpu else BlockPool(blocks)
        self._sequences = Sequences(pool, block_size, reuse=reuse)
        self._settings = SettingsTable()
        self._grammars = Grammars(folder, model.vocab_size)
        # Exclusive: the caller counts the blocks, and preempts its own requests when they run out.
        self._ledger: Ledger[Sequence, TargetReply] = Ledger(self._open, self._close, exclusive=True)
        # Set as soon as a GPU has a pass. Models elsewhere have computed it when `forward` returns.
        self._launched = threading.Event() if model.device.startswith("cuda") else None
        self._until = model if isinstance(model, Stoppable) else None
        ahead = Ahead(self._guessed, self._thread, self._launched, stoppable=self._until is not None)
        self._ahead = ahead if run_ahead else None
        self._reserved: list[Sequence] = []  # rows with blocks for the drafts of the last guess
        self._info = TargetInfo(
            model=name,
            vocab_size=model.vocab_size,
            max_positions=model.max_positions,
            block_size=block_size,
            total_blocks=blocks,
            end_ids=tuple(model.end_ids),
            numerics=model.numerics,
            dtype=model.dtype,
            device=model.device,
            epoch=self._ledger.epoch,
            folder=folder,
            identity=identity,
            block_bytes=model.bytes_per_block,
            least_blocks=blocks,
            state_width=0 if self._maker is None else self._maker.state_width,
            weight_type=model.weight_type,
            processor=cpu.label() if model.device == "cpu" else _gpu_name(),
            drafts_ahead=self._own_head is not None,
        )

    @classmethod
    def load(
        cls,
        folder: str | Path,
        settings: TargetSettings,
        *,
        token_budget: int,
        name: str,
        depth: int = 0,
        most_blocks: int = 0,
        head: str = "",
        own: DrafterSettings | None = None,
    ) -> TargetRunner:
        """Return the target that the settings describe, from `folder`. No pass has more than `token_budget` tokens, and
        few rows have drafts deeper than `depth`. Its pool may grow to `most_blocks`. If `head` names a folder, the
        target makes states for that head; with the drafters' settings as `own`, it also drafts with it."""
        asked, settings = settings, typed(folder, settings)
        if settings.runtime == TORCH and asked.runtime == "auto":
            log.info("%s: PyTorch computes it: %s", folder, why_not(folder, asked))
        taps = heads.taps_of(Path(head), Path(folder)) if head else None
        opened = partial(
            open_target, folder, token_budget=token_budget, depth=depth, most_blocks=most_blocks, taps=taps
        )
        may_fall_back = settings.runtime == NATIVE and asked.runtime == "auto" and asked.numerics != "fast"
        may_fall_back &= asked.dtype != SMALL  # PyTorch computes none in bytes
        compute, model = opened(replace(settings, numerics="auto") if may_fall_back else settings)
        if may_fall_back and model.numerics == "fast":
            log.warning("%s: PyTorch computes it, because the native runtime's passes are not invariant here", folder)
            del compute, model  # memory may not hold both
            settings = typed(folder, replace(asked, runtime=TORCH))
            compute, model = opened(settings)
        return cls(
            model,
            blocks=model.blocks,
            block_size=settings.block_size,
            reuse=True,
            name=name,
            folder=str(folder),
            run_ahead=settings.run_ahead,
            identity=_identity(folder, replace(settings, folder="", memory=1.0, kv_memory_mb=0, kv_blocks=0)),
            compute=compute,
            head=_own_head(head, folder, own, depth) if own is not None and settings.runtime == NATIVE else None,
        )

    def info(self) -> TargetInfo:
        return replace(self._info, total_blocks=self._sequences.pool.total)

    def check(self) -> None:
        """Raise AssertionError unless the bookkeeping of blocks is consistent."""
        self._sequences.check()

    def step(self, work: TargetWork) -> TargetReply:
        return self._ledger.once(work, self._step)

    def resize(self, blocks: int) -> Resized:
        if self._ahead is not None:
            self._ahead.collect(wanted=False)  # its blocks may move; the next pass is computed on demand
        return self._thread.run(resize, self._model, self._sequences, blocks, self._info.least_blocks)

    def _step(self, work: TargetWork) -> TargetReply:
        started = time.perf_counter()
        measured = work.divergence and len(work.trees.tokens)  # how alike target and drafter are
        alike = not (work.opens or measured) and bool((work.chunk == 1).all())
        alike = alike and self._ahead is not None and self._ahead.expects(work.tags.tolist(), work.trees)
        precomputed = self._ahead.collect(wanted=alike) if self._ahead is not None else None
        reserved, self._reserved = self._reserved, []
        if not alike:
            for sequence in reserved:  # others may need the blocks of these drafts
                self._sequences.settle(sequence)
        reused = {tag: sequence.num_cached_tokens for tag, sequence in self._ledger.update(work).items()}
        if not len(work.tags) and not len(self._sequences):
            self.check()  # idle, so the check delays no request
        reply = self._pass(work, reused, started, precomputed)
        if self._ahead is not None:
            self._ahead.score(right=alike)
            self._guess(self._ahead, work, reply)
        return reply

    def _open(self, opening: Open) -> Sequence:
        row = self._settings.add(opening.sampling, opening.num_prompt)
        self._grammars.add(row, opening.sampling)
        return self._sequences.open(opening, row, anew=opening.sampling.prompt_logprobs)

    def _close(self, sequence: Sequence, _ended: bool) -> None:
        self._sequences.close(sequence)
        if self._own_head is not None:
            self._own_head.forget(sequence.tag)
        self._settings.remove(sequence.settings)
        self._grammars.remove(sequence.settings)

    def _guess(self, ahead: Ahead, work: TargetWork, reply: TargetReply) -> None:
        """Begin the next pass with the drafts of the reply, without rows that find no block or have ended."""
        if not (reply.offsets[1:] > reply.offsets[:-1]).all():
            return
        rows, drafts = [], list[Ints]()
        bounds = reply.draft_offsets if len(reply.draft_offsets) else np.zeros(len(work.tags) + 1, np.int32)
        for row, sequence, _ in self._going_on(work, reply.offsets, reply.tokens):
            draft = reply.draft_tokens[bounds[row] : bounds[row + 1]]
            if self._sequences.reserve(sequence, sequence.num_tokens + len(draft)):
                rows.append(sequence)
                drafts.append(draft)
        self._reserved = rows
        ahead.guess(rows, Trees.chains(drafts))

    def _going_on(self, work: TargetWork, offsets: Ints, tokens: Ints) -> Iterator[tuple[int, Sequence, int]]:
        """Yield the rows that have emitted tokens and not ended with them, and how many more they may emit."""
        emitted, bounds = (offsets[1:] - offsets[:-1]).tolist(), offsets.tolist()
        for row, (tag, room) in enumerate(zip(work.tags.tolist(), work.room.tolist())):
            sequence, left = self._ledger.get(work, tag), room - emitted[row]
            if sequence is None or left <= 0 or not emitted[row]:
                continue
            ends = self._settings.sampling(sequence.settings).end_ids
            if not any(token in ends for token in tokens[bounds[row] : bounds[row + 1]].tolist()):
                yield row, sequence, left

    def _drafts(self, work: TargetWork, offsets: Ints, tokens: Ints) -> dict[str, Any]:
        """Return the drafts for the next pass, of the rows that want some."""
        if self._own_head is None or not work.next_depth.any():
            return {}
        depths, wishes = work.next_depth.tolist(), []
        for row, sequence, left in self._going_on(work, offsets, tokens):
            sampling = self._settings.sampling(sequence.settings)
            depth = min(depths[row], left - 1, self._info.max_positions - sequence.num_tokens)
            if depth > 0 and sampling.rule is Rule.COUPLED:
                num_prompt = int(self._settings.num_prompt[sequence.settings])
                wishes.append(Wish(row, sequence, depth, sampling, num_prompt))
        return self._own_head.draft(len(work.tags), wishes)

    def _pass(
        self, work: TargetWork, reused: dict[int, int], started: float, precomputed: Precomputed | None
    ) -> TargetReply:
        status, rows, chunk, trees = self._admit(work)
        offsets = np.zeros(len(status) + 1, np.int32)
        accepted = np.zeros(len(status), np.int32)
        tokens, logprobs, top = NO_INTS, NO_FLOATS, NO_TOP
        divergence = np.full(len(status), NO_DIVERGENCE, np.float32) if work.divergence else NO_FLOATS
        counts, scores = np.zeros(len(status), np.int32), NO_SCORES
        if rows:
            counts[status == RowStatus.OK] = self._scored(rows, chunk)
            ending, verified, scores = self._precomputed_or_computed(rows, chunk, trees, precomputed, work.divergence)
            for row, sequence in enumerate(rows):
                sequence.num_cached_tokens += chunk[row]
            if verified is not None:
                ended = [sequence for sequence, ends in zip(rows, ending.tolist()) if ends]
                self._commit(ended, verified)
                answered = np.flatnonzero(status == RowStatus.OK)[ending]
                for row in verified.faulty.nonzero()[0].tolist():
                    scores = scores.at(np.repeat(np.arange(len(counts)) != answered[row], counts))
                    counts[answered[row]] = 0
                    if not self._begin_anew(ended[row]):
                        status[answered[row]] = RowStatus.FAULT
                accepted[answered], offsets[answered + 1] = verified.accepted, verified.emitted
                tokens, logprobs = verified.tokens, verified.logprobs
                if verified.top.width:
                    top = verified.top
                if work.divergence:
                    divergence[answered] = verified.divergence
            for sequence in rows:
                self._sequences.settle(sequence)
        known = [self._ledger.get(work, tag) for tag in work.tags.tolist()]
        offsets = np.cumsum(offsets, dtype=np.int32)
        more = self._states(work.states_from, known, status)
        seconds = time.perf_counter() - started
        more |= self._drafts(work, offsets, tokens)
        return TargetReply(
            status=status,
            num_cached_tokens=np.asarray([row.num_cached_tokens if row else 0 for row in known], np.int32),
            reused=np.asarray([reused.get(tag, 0) for tag in work.tags.tolist()], np.int32),
            accepted=accepted,
            offsets=offsets,
            tokens=tokens,
            logprobs=logprobs,
            free_blocks=self._sequences.pool.available,
            total_blocks=self._sequences.pool.total,
            epoch=self._ledger.epoch,
            seconds=max(seconds, 0.0 if precomputed is None else precomputed.seconds),
            divergence=divergence,
            top=top,
            scored=np.cumsum([0, *counts], dtype=np.int32) if counts.any() else NO_INTS,
            scores=scores,
            **more,
        )

    def _states(self, first: Ints, rows: list[Sequence | None], status: Ints) -> dict[str, Any]:
        """Return the requested states of each row, from that position to the end of its KV."""
        if not len(first) or self._maker is None:
            return {}
        slots = [
            NO_INTS if row is None or at < 0 or failed else row.slots[at : row.num_cached_tokens]
            for row, at, failed in zip(rows, first.tolist(), status.tolist())
        ]
        offsets = np.cumsum([0, *map(len, slots)], dtype=np.int32)
        return {"state_offsets": offsets, "states": self._thread.run(self._maker.states, np.concatenate(slots))}

    def _precomputed_or_computed(
        self,
        rows: list[Sequence],
        chunk: list[int],
        trees: Trees,
        precomputed: Precomputed | None,
        divergence: bool,
    ) -> tuple[Mask, Verified | None, Scores]:
        """Verify these rows as `_compute` does, or take what was computed ahead if that has all of them."""
        known = [] if precomputed is None else [at for row in rows if (at := precomputed.row(row)) is not None]
        if precomputed is None or len(known) < len(rows) or len(trees.tokens) != precomputed.drafts_of(known):
            return self._compute(rows, chunk, trees, divergence)
        return np.ones(len(rows), np.bool_), pick(precomputed.verified, np.asarray(known, np.int64)), NO_SCORES

    def _guessed(self, rows: list[Sequence], trees: Trees, stop: Stop) -> Verified | None:
        """Run a pass over rows that decode. Return None if it was stopped."""
        verified = self._compute(rows, [1] * len(rows), trees, False, stop)[1]
        assert verified is not None or stop[0], "every row that decodes has logits"
        return verified

    def _compute(
        self, rows: list[Sequence], chunk: list[int], trees: Trees, divergence: bool, stop: Stop | None = None
    ) -> tuple[Mask, Verified | None, Scores]:
        """Run one pass over the model. Return which rows reach their last token, the outcome of those rows, and the
        scores of all rows' prompts. Writes KV but changes no row, so the results can be dropped. A pass that is stopped
        has no outcome."""
        return self._thread.run(self._computed, rows, chunk, trees, divergence, stop)

    def _computed(
        self, rows: list[Sequence], chunk: list[int], trees: Trees, divergence: bool, stop: Stop | None
    ) -> tuple[Mask, Verified | None, Scores]:
        scored, scores = self._scored(rows, chunk), NO_SCORES
        packing = Packing(rows, chunk, trees, scored, windows=self._model.windows)
        ending = np.asarray(packing.ends)
        if stop is None or self._until is None:
            logits: Logits | None = self._model.forward(packing.work)
        else:
            logits = self._until.forward_until(packing.work, stop)
        if logits is None:
            return ending, None, scores
        if self._launched is not None:
            self._launched.set()
        if packing.of_prompt is not None and packing.of_prompt.any():
            scores = self._score(select(plain(logits), packing.of_prompt.nonzero()[0]), rows, scored)
            logits = select(plain(logits), (~packing.of_prompt).nonzero()[0])
        if not ending.any():
            return ending, None, scores
        ended = [sequence for sequence, ends in zip(rows, packing.ends) if ends]
        return ending, self._verify(logits, ended, rows_of(trees, ending), packing.depth, divergence), scores

    def _scored(self, rows: list[Sequence], chunk: list[int]) -> Ints:
        """Return how many of each row's next tokens precede a token whose log-probability is wanted."""
        table = self._settings
        if not table.prompt_logprobs.any():
            return np.zeros(len(rows), np.int32)
        settings = np.fromiter((row.settings for row in rows), np.int32, len(rows))
        cached = np.fromiter((row.num_cached_tokens for row in rows), np.int32, len(rows))
        last = np.where(table.prompt_logprobs[settings], table.num_prompt[settings] - 1, 0)
        return np.clip(last - cached, 0, chunk).astype(np.int32)

    def _score(self, logits: Logits, rows: list[Sequence], scored: Ints) -> Scores:
        """Return the scores of the tokens after the first `scored[r]` next ones of each row, given their logits."""
        spans = [
            slice(row.num_cached_tokens + 1, row.num_cached_tokens + 1 + count) for row, count in zip(rows, scored)
        ]
        tokens = np.concatenate([row.buffer[span] for row, span in zip(rows, spans)]).astype(np.int64)
        settings = np.repeat([row.settings for row in rows], scored)
        found = np.maximum(log_probabilities(logits, self._settings, settings, tokens), np.float32(LEAST_LOGPROB))
        return Scores(found, likeliest(logits, self._settings, settings, np.arange(len(tokens), dtype=np.int32)))

    def _admit(self, work: TargetWork) -> tuple[Ints, list[Sequence], list[int], Trees]:
        """Return the rows that this pass can compute: those on which both sides agree and that find room in the pool. A
        tree that finds no room is left out, and its row decodes plainly. Trees come last, so that none takes a block
        that another row needs."""
        status = np.zeros(len(work.tags), np.int32)
        rows, chunk, trees = [], [], []
        planted = np.zeros(len(work.tags), np.bool_)
        sizes, bases, chunks = work.trees.sizes.tolist(), work.base.tolist(), work.chunk.tolist()
        for row, tag in enumerate(work.tags.tolist()):
            sequence = self._ledger.find(work, tag, bases[row])
            if sequence is None or sequence.num_tokens != bases[row]:
                status[row] = RowStatus.STALE
                continue
            count = min(chunks[row], sequence.num_tokens - sequence.num_cached_tokens)
            reached = sequence.num_cached_tokens + count
            if not self._sequences.reserve(sequence, reached):
                status[row] = RowStatus.NO_BLOCKS
                continue
            rows.append(sequence)
            chunk.append(count)
            if sizes[row] and reached == sequence.num_tokens:
                trees.append((row, sequence, reached + sizes[row]))
        for row, sequence, length in trees:
            planted[row] = self._sequences.reserve(sequence, length)
        kept = work.trees if planted.all() else work.trees.only(planted)
        return status, rows, chunk, rows_of(kept, status == RowStatus.OK)

    def _verify(self, logits: Logits, rows: list[Sequence], trees: Trees, depth: Ints, divergence: bool) -> Verified:
        """Return the outcome of every row by its verification rule."""
        sizes = trees.sizes
        lengths = np.fromiter((row.num_tokens for row in rows), np.int32, len(rows))
        positions = np.repeat(lengths, sizes + 1)
        is_node = np.ones(len(positions), np.bool_)
        is_node[trees.offsets[:-1] + np.arange(len(rows), dtype=np.int32)] = False
        positions[is_node] += depth
        settings = np.fromiter((row.settings for row in rows), np.int32, len(rows))
        rounds = np.fromiter((row.rounds for row in rows), np.int32, len(rows))
        asked = self._settings.history[settings] | self._settings.constrained[settings]
        contexts = self._contexts(rows, trees, asked.tolist()) if asked.any() else None
        places = Places(logits, np.repeat(settings, sizes + 1), positions, contexts)
        return verify(places, self._settings, trees, rounds, divergence=divergence)

    def _commit(self, rows: list[Sequence], verified: Verified) -> None:
        """Append the emitted tokens, and move the accepted nodes' KV to the slots of their positions."""
        accepted = verified.accepted
        place = np.arange(len(verified.path)) - np.repeat(np.cumsum(accepted) - accepted, accepted)
        moved = np.flatnonzero(verified.path != place)
        if len(moved):
            of_row = np.repeat(np.arange(len(rows)), accepted)[moved].tolist()
            nodes, places = verified.path[moved].tolist(), place[moved].tolist()
            slots = [
                (rows[row].slots[rows[row].num_tokens + node], rows[row].slots[rows[row].num_tokens + at])
                for row, node, at in zip(of_row, nodes, places)
            ]
            sources, destinations = np.asarray(slots, np.int32).T
            self._thread.run(self._model.copy_slots, sources, destinations)
        ends = np.cumsum(verified.emitted).tolist()
        for sequence, count, start, end in zip(rows, accepted.tolist(), [0, *ends], ends):
            sequence.rounds += 1
            sequence.num_cached_tokens += count
            sequence.append(verified.tokens[start:end])

    def _begin_anew(self, sequence: Sequence) -> bool:
        """Clear a row's KV, and return whether to compute it once more: not if it failed at this length before. A NaN
        that others, or its own drafts, left in its blocks gets through every mask (0 x NaN is NaN)."""
        self._thread.run(self._model.clear_slots, self._sequences.restart(sequence))
        again = sequence.failed != sequence.num_tokens
        sequence.failed = sequence.num_tokens
        return again

    def _contexts(self, rows: list[Sequence], trees: Trees, asked: list[bool]) -> list[Context | None]:
        contexts: list[Context | None] = []
        bounds = trees.offsets.tolist()
        for index, sequence in enumerate(rows):
            start, end = bounds[index], bounds[index + 1]
            if not asked[index]:
                contexts += [None] * (end - start + 1)
                continue
            history, grammar = sequence.tokens, self._grammars.get(sequence.settings)
            if grammar is not None:
                grammar.follow(history[self._settings.num_prompt[sequence.settings] :])
            for node in range(-1, end - start):
                path = trees.tokens[start + path_to(trees.parents[start:end], node)]
                contexts.append(Context(history, path, None if grammar is None else grammar.after(path.tolist())))
        return contexts


def open_target(
    folder: str | Path,
    settings: TargetSettings,
    token_budget: int,
    depth: int,
    most_blocks: int,
    taps: Taps | None = None,
) -> tuple[Compute, AnyModel]:
    """Return the model and the thread that computes with it. `settings` must come from `typed`."""
    threads = min(settings.threads or cpu.cores(), cpu.cores())  # more threads would only wait for one another
    given: dict[str, Any] = {"numerics": settings.numerics, "max_pass_tokens": token_budget}
    given |= {"dtype": settings.dtype, "most_blocks": most_blocks, "taps": taps}
    build: Any
    if settings.runtime == NATIVE:
        from covey.models.native.model import NativeModel

        compute, build = Compute(anywhere=True), NativeModel
        given["threads"] = threads
    else:
        from covey.runtimes.opening import open_model

        compute = Compute(threads)  # before the model opens: its checks must run with the threads that serve
        build = partial(open_model, tokens_per_row=1 + depth)
        given |= {"device": settings.device, "block_size": settings.block_size}
    product = budget.NO_PRODUCT if taps is None else taps.fc.shape
    part = budget.of_target(folder, settings, budget.gpu(settings.device), product)
    blocks = budget.blocks(part, settings.block_size, "target")
    model = compute.run(build, folder, blocks=blocks, **given)
    if model.device.startswith("cuda"):
        compute.run(_warm_up_draws, model.vocab_size)
    return compute, model


def _own_head(head: str, folder: str | Path, settings: DrafterSettings, depth: int) -> NeuralDrafter | None:
    """Return the head in its folder for the target in another; None where there is none."""
    if not head:
        return None
    from covey.drafters.neural import NeuralDrafter

    blocks = min(settings.kv_blocks or budget.HEAD_BLOCKS, budget.HEAD_BLOCKS)
    settings = replace(settings, device="cpu", kv_memory_mb=0, kv_blocks=blocks)
    try:
        made = NeuralDrafter.load(head, settings, name="own head", depth=depth, target=folder)
        made.warm_up()
    except Exception:
        log.exception("the target cannot draft with its head itself; the head's own process does")
        return None
    return made


def _identity(folder: str | Path, settings: TargetSettings) -> str:
    if settings.runtime == NATIVE:
        from covey.models.native.model import code

        return identity([settings, code()], files_of(Path(folder)))
    return of_model(folder, settings)


def _gpu_name() -> str:
    import torch

    return torch.cuda.get_device_name()


def _warm_up_draws(vocab: int) -> None:
    """Compile the kernels of greedy and other draws on this thread's GPU."""
    import torch

    device = torch.device("cuda", torch.cuda.current_device())
    table = SettingsTable()
    settings = np.asarray([table.add(Sampling(temperature=each, seed=1), 1) for each in (0.0, 1.0)], np.int32)
    draw(torch.zeros(2, vocab, device=device), table, settings, np.ones(2, np.int32))


def typed(folder: str | Path, settings: TargetSettings) -> TargetSettings:
    """Return the settings with the dtype and the runtime that will serve the folder's model filled in."""
    runtime = runtime_of(folder, settings)
    if runtime == NATIVE:
        return replace(settings, runtime=runtime, dtype=dtypes.on_cpu(settings.dtype, folder))
    from covey.models.loading import choose_device, serving_dtype

    dtype = serving_dtype(settings.dtype, choose_device(settings.device), folder)
    return replace(settings, runtime=runtime, dtype=dtype)


def most_blocks(folder: str | Path, settings: TargetSettings, product: tuple[int, ...] = budget.NO_PRODUCT) -> int:
    """Return the number of blocks that would fill the device: reserving addresses costs nothing."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if settings.runtime != NATIVE:
        import torch

        from covey.models.loading import choose_device

        if choose_device(settings.device).type == "cuda":
            memory = torch.cuda.mem_get_info()[1]
    token = budget.of_target(folder, settings, budget.gpu(settings.device), product).token
    return min(memory // token, budget.MOST) // settings.block_size

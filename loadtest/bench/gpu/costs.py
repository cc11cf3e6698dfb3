"""The part `costs` of the bench `gpu`: device and pair as a cost table, from the rounds of engines in this process.

What `covey profile` measures through a server has the way there and back in it; this has not, and its origin says so.
"""

from __future__ import annotations

import numpy as np
import torch

from covey.rounds import RoundRecord
from covey.types import NO_INTS, DraftWork, JsonDict, Open, Sampling
from covey_client.costs.samples import Samples
from loadtest.bench.gpu.rig import DRAFTER, OFF, Rig
from loadtest.bench.policies import fixed

ROWS, ROWS_OFF_GPU = (1, 2, 4, 8, 16, 32, 64, 128), (1, 3)
DEPTHS, DEPTHS_OFF_GPU = (0, 1, 2, 3, 4, 6), (0, 2)
PROMPTS, PROMPTS_OFF_GPU = (64, 128, 256, 512, 1000), (16, 48)
BEHIND = ((64, 1), (256, 1), (1000, 1), (64, 4), (240, 4), (64, 15))  # tokens, rows: what one call reads at most
BEHIND_OFF_GPU = ((64, 1), (96, 2))
PROMPT, OUTPUT, OUTPUT_OFF_GPU = 64, 64, 12
SETTLING = 2  # rounds before any is counted


def costs(rig: Rig, found: JsonDict) -> None:
    """Writes the table beside the JSON."""
    samples = Samples()
    for rows in ROWS if rig.on_gpu else ROWS_OFF_GPU:
        for depth in DEPTHS if rig.on_gpu else DEPTHS_OFF_GPU:
            _decode(rig, samples, rows, depth)
    for tokens in PROMPTS if rig.on_gpu else PROMPTS_OFF_GPU:
        _read(rig, samples, tokens)
    for lag, rows in BEHIND if rig.on_gpu else BEHIND_OFF_GPU:
        _catch_up(rig, samples, lag, rows)
    out = rig.session.wanted.out
    path = out.with_name(f"{out.stem}-costs.json")
    device = torch.cuda.get_device_name(rig.device) if rig.on_gpu else "a processor"
    origin = (
        f"measured by the bench gpu on {device}, torch {torch.__version__}: synthetic pair {rig.size}, target and "
        "drafter in one process with the engine, without a server's transport; medians"
    )
    table = samples.table(path.stem, origin)
    table.save(path)
    found |= {
        "table": path.name,
        "plain_ms": {str(rows): 1000 * seconds for rows, seconds in table.plain},
        "verify_ms": {f"{rows} rows, {tokens} tokens": 1000 * seconds for rows, tokens, seconds in table.verify},
        "draft_ms": {f"{rows} rows, depth {depth}": 1000 * seconds for rows, depth, seconds in table.draft[DRAFTER]},
        "switch_ms": {f"{lag} tokens, {rows} rows": 1000 * seconds for lag, rows, seconds in table.switch[DRAFTER]},
        "prefill_ms": {str(tokens): 1000 * seconds for tokens, seconds in table.prefill},
    }


def _decode(rig: Rig, samples: Samples, rows: int, depth: int) -> None:
    """Rounds of so many rows, all drafting as deep, after others that recorded the same passes."""
    output = OUTPUT if rig.on_gpu else OUTPUT_OFF_GPU
    records: list[RoundRecord] = []
    engine = rig.engine(fixed(depth) if depth else OFF, observe=records.append)
    try:
        for seed in (0, 1):
            records.clear()
            asks = rig.asks(rows, prompt=(PROMPT, PROMPT), output=(output, output), seed=seed)
            engine.run(asks, rows, tenant=f"costs {rows} {depth} {seed}")
    finally:
        engine.close()
    whole = [
        each
        for each in records
        if each.decoding == each.rows == rows and not each.prefill_tokens and each.drafted == rows * depth
    ]
    samples.decoded(rows, depth, DRAFTER, whole[SETTLING:])


def _read(rig: Rig, samples: Samples, tokens: int) -> None:
    """A pass over one prompt, where the budget holds all of it."""
    records: list[RoundRecord] = []
    engine = rig.engine(OFF, observe=records.append)
    try:
        for seed in range(4):
            asks = rig.asks(1, prompt=(tokens, tokens), output=(2, 2), seed=seed)
            engine.run(asks, 1, tenant=f"costs prompt {tokens} {seed}")
    finally:
        engine.close()
    samples.read(tokens, [each for each in records if each.prefill_tokens == tokens][1:])


def _catch_up(rig: Rig, samples: Samples, lag: int, rows: int) -> None:
    """What the drafter takes to see texts that it was not told of so far."""
    draft, rng = rig.loaded().draft, np.random.default_rng(rig.session.wanted.seed)
    tags = np.arange(1, rows + 1, dtype=np.int32)
    for _ in range(4):
        texts = rng.integers(2, rig.config.vocab_size, (rows, lag)).astype(np.int32)
        work = DraftWork(
            tags=tags,
            keep=np.full(rows, lag, np.int32),
            offsets=np.zeros(rows + 1, np.int32),
            tokens=NO_INTS,
            depth=np.ones(rows, np.int32),
            width=np.ones(rows, np.int32),
            rounds=np.zeros(rows, np.int32),
            opens=tuple(Open(tag, text, lag, Sampling()) for tag, text in zip(tags.tolist(), texts)),
        )
        reply = draft.draft(work)
        if reply.catch_up_seconds:
            samples.began(DRAFTER, lag, rows, reply.catch_up_seconds)
    nobody = np.zeros(0, np.int32)
    draft.draft(
        DraftWork(nobody, nobody, np.zeros(1, np.int32), NO_INTS, nobody, nobody, nobody, frees=tuple(tags.tolist()))
    )

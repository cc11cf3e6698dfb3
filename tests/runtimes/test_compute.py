"""One thread of a process has a pool of OpenMP threads, from the load to the end, whoever calls."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from covey.runtimes.compute import Compute
from tests.bundled import MODELS

# Threads of libgomp's pools are none of Python's, and have the name that the thread has in whose pool they are. Two
# threads load and call here.
WATCHED = """
import os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
import numpy as np
import torch, transformers
from covey.contracts import profile
from covey.drafters import load_drafter
from covey.target.opening import load_target
from covey.contracts.types import NO_INTS, DraftWork, Open, Sampling, TargetWork, Trees

TASKS = Path("/proc/self/task")

def tasks():
    own = {thread.native_id for thread in threading.enumerate()}
    found = {int(task): TASKS / task / "comm" for task in os.listdir(TASKS)}
    return {task: path.read_text().strip() for task, path in found.items() if task not in own}

def ints(*values):
    return np.asarray(values, np.int32)

def elsewhere(call, *given):
    return other.submit(call, *given).result()

def target(folder):
    loaded = load_target(folder, chosen, name="target")
    tokens, total = list(range(20, 84)), loaded.info().total_blocks
    for number in range(1, 13):
        first = number == 1
        drafts = ints(7, 8, 9, 7) if number % 4 == 0 else NO_INTS
        trees = Trees(ints(0, len(drafts)), drafts, ints(*[-1, 0, -1, -1][: len(drafts)]))
        opens = (Open(1, ints(*tokens), len(tokens), Sampling(number % 2)),) if first else ()
        work = TargetWork(
            ints(1), ints(len(tokens)), ints(len(tokens) if first else 1), trees, opens, sequence=number, room=ints(99)
        )
        call = loaded.step if number % 3 else lambda work: elsewhere(loaded.step, work)
        tokens += call(work).tokens.tolist()
    for blocks in (total // 2 // 8 * 8 + 1, total // 2 // 8 * 8 + 1, total):  # what is left of pages is cleared
        elsewhere(loaded.resize, blocks)
    loaded._model._reserve._worker.submit(int, 0).result()  # pages have come and gone

def drafter(folder):
    loaded = load_drafter("neural", folder, Path(sys.argv[2]), chosen, name="draft_general")
    tokens = ints(*range(20, 84))
    opened = Open(1, tokens, 32, Sampling(1.0, seed=4))
    row = ints(1), ints(64), ints(0, 0), NO_INTS, ints(4), ints(2), ints(0)
    loaded.draft(DraftWork(*row, opens=(opened,), sequence=1))
    (reply,) = elsewhere(loaded.draft_together, [DraftWork(*row, sequence=2)])
    assert len(reply.trees.tokens) == 8

chosen = profile.load("demo-cpu")
elastic = replace(chosen.memory, policy="thresholds")
pytorch = replace(chosen.target, threads=2, runtime="torch"), replace(chosen.drafter, dtype="float64")
chosen = replace(chosen, target=pytorch[0], drafter=pytorch[1], memory=elastic)
torch.set_num_threads(1)
# To examine a drafter is transformers' work, and done once on a machine.
load_drafter("neural", Path(sys.argv[1]), Path(sys.argv[2]), chosen, name="draft_general")
for act, folder in (drafter, sys.argv[1]), (target, sys.argv[2]):
    before, other = tasks(), ThreadPoolExecutor(1)  # a thread of which nobody has asked yet how many threads it has
    act(Path(folder))
    assert [thread.name for thread in threading.enumerate()].count("compute") <= 1
    print(act.__name__, *sorted({name for task, name in tasks().items() if task not in before}))
"""


def test_openmp_has_the_pool_of_one_thread() -> None:
    """A drafter computes in one thread. A target loads, proves, verifies, runs ahead and moves memory in one that has
    a pool. That is so of what PyTorch computes: the native runtime has no OpenMP."""
    command = [sys.executable, "-c", WATCHED, *(str(MODELS / name / "1") for name in ("draft_general", "target"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["drafter", "target compute"]


def test_calls_are_made_in_one_thread_of_that_name_whoever_asks() -> None:
    compute = Compute()
    found = [compute.run(threading.current_thread)]
    with ThreadPoolExecutor(1) as other:
        found.append(other.submit(compute.run, threading.current_thread).result())
    found.append(compute.run(compute.run, threading.current_thread))
    assert {thread.name for thread in found} == {"compute"}
    assert len(set(found)) == 1
    with pytest.raises(ZeroDivisionError):
        compute.run(divmod, 1, 0)
    del compute
    gc.collect()
    found[0].join(5.0)
    assert not found[0].is_alive(), "it ends with who owned it"


@pytest.mark.parametrize("threads", [1, 2])
def test_it_computes_with_as_many_threads_as_its_maker_or_as_it_is_told(threads: int) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        made, told = Compute(), Compute(3 - threads)
    finally:
        torch.set_num_threads(before)
    assert made.run(torch.get_num_threads) == threads
    assert told.run(torch.get_num_threads) == 3 - threads

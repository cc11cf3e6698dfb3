"""One thread of a process has a pool of OpenMP threads, from the load to the end, whoever calls."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from covey.runtimes.compute import Compute


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


def test_calls_that_any_thread_may_make_are_made_in_the_callers_after_what_is_queued() -> None:
    compute, ended, may_end = Compute(anywhere=True), list[str](), threading.Event()

    def slow(name: str) -> None:
        may_end.wait(5.0)
        ended.append(name)

    compute.submit(slow, "queued")
    threading.Timer(0.1, may_end.set).start()
    assert compute.run(threading.current_thread) is threading.current_thread()
    assert ended == ["queued"]
    with pytest.raises(ZeroDivisionError):
        compute.run(divmod, 1, 0)


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

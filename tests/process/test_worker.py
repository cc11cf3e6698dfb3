"""Calls in a thread of their own."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from covey.process.worker import Thread

STUCK = """
import threading
from covey.process.worker import Thread

begun = threading.Event()

def stuck(event):
    event.set()
    threading.Event().wait()

Thread("stuck").submit(stuck, begun)
begun.wait()
print("ended")
"""


def test_calls_are_made_in_order_in_one_thread_of_that_name_until_it_is_closed() -> None:
    worker = Thread("draft-one")
    made: list[int] = []

    def note(number: int) -> threading.Thread:
        made.append(number)
        return threading.current_thread()

    futures = [worker.submit(note, number) for number in range(20)]
    (thread,) = {future.result(5.0) for future in futures}
    assert (thread.name, made) == ("draft-one", list(range(20)))
    worker.close()
    thread.join(5.0)
    assert not thread.is_alive()


@pytest.mark.timeout(60)
def test_a_process_ends_though_a_call_is_stuck() -> None:
    found = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=55, check=True)
    assert found.stdout == "ended\n"

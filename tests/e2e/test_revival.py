"""A server under a container's limit on processes: it fits, and models whose process is killed come back."""

from __future__ import annotations

import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest

from covey.launcher import Server
from covey.supervision import processes
from tests.e2e.serving import streams as served_meanwhile
from tests.e2e.serving import works
from tests.waiting import until

pytestmark = pytest.mark.e2e

PROMPT = "User: What did you do at the weekend?\nAssistant:"
IDLE = 400
A_DEATH = 1 + 3  # threads that Triton keeps of a model that dies within a call: its pool, and three of its own
SOONEST = 0.2  # seconds in which a model may be back
SECONDS = 180.0  # until a model is back, on a machine that does much else; alone it takes one or two


def threads(server: Server) -> Counter[str]:
    """By process."""
    return Counter({name: len(os.listdir(f"/proc/{pid}/task")) for name, pid in processes.named(server.pid).items()})


def until_ended(server: Server, before: Counter[str], more: int) -> None:
    """Threads of what has ended end soon; those that stay are at most so many."""
    until(lambda: threads(server).total() <= before.total() + more, lambda: (before, threads(server)), SECONDS)


def kill(server: Server, *models: str) -> None:
    running = processes.named(server.pid)
    for model in models:
        os.kill(running[model], signal.SIGKILL)


def status(server: Server, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{server.http_url}/v2/{path}/ready", timeout=10) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def streams(server: Server, *drafters: str) -> AbstractContextManager[None]:
    """Requests run meanwhile, one for each of the drafters."""
    settings = {"max_tokens": 100, "min_tokens": 100, "temperature": 1.0, "seed": 11}
    return served_meanwhile(
        server, PROMPT, settings, [{"speculation": "fixed:3", "drafter": drafter} for drafter in drafters]
    )


def until_back(server: Server, model: str, before: int) -> tuple[list[int], list[int]]:
    """Wait until another process than `before` serves the model; what readiness said of server and model.

    Each is asked over and over in a thread of its own: some models are back within a quarter of a second, in which a
    busy machine looks for processes once. An answer so long after the one before that the model may have died and
    come back meanwhile is 0.
    """
    of_server, of_model = list[int](), list[int]()
    back = threading.Event()

    def ask(path: str, said: list[int]) -> None:
        last = time.monotonic()
        while not back.is_set():
            answer, before_it, last = status(server, path), last, time.monotonic()
            said.append(answer if last - before_it < SOONEST else 0)
            time.sleep(0.01)

    deadline = time.monotonic() + SECONDS
    heard: list[int] = []  # answers to what was asked before another process was there
    with ThreadPoolExecutor(2) as both:
        asking = [both.submit(ask, "health", of_server), both.submit(ask, f"models/{model}", of_model)]
        try:
            while True:
                if not heard and processes.named(server.pid).get(model, before) != before:
                    heard = [len(said) + 1 for said in (of_server, of_model)]
                time.sleep(0.02)
                if heard and all(said[count:][-1:] == [200] for said, count in zip((of_server, of_model), heard)):
                    break
                assert not any(each.done() for each in asking), [each.exception() for each in asking if each.done()]
                assert time.monotonic() < deadline, (model, of_server[-5:], of_model[-5:], server.log_text()[-2000:])
        finally:
            back.set()
    return of_server, of_model


def use_all(server: Server) -> None:
    """Some threads begin with the first request of their kind."""
    with streams(server, "draft_ngram"):
        assert all(works(server, model) for model in ("covey", "covey_unary", "ensemble"))


def test_an_idle_server_fits_into_a_container(crowded: Server) -> None:
    assert threads(crowded).total() < IDLE


def test_a_small_model_whose_process_dies_is_back_at_once(crowded: Server) -> None:
    use_all(crowded)
    before, pid = threads(crowded), processes.named(crowded.pid)["detokenize"]
    with streams(crowded, "draft_ngram"):
        kill(crowded, "detokenize")
        for said in until_back(crowded, "detokenize", pid):
            assert set(said) > {200}, "readiness did not say so"
        assert works(crowded, "ensemble")
    until_ended(crowded, before, 8)  # nobody had called it when it died: nothing of it stays


def test_what_is_unloaded_stays_unloaded(crowded: Server) -> None:
    crowded.control.unload("tokenize")
    until(lambda: "tokenize" not in processes.named(crowded.pid))
    time.sleep(1)
    assert crowded.control.states()["tokenize"] == "UNAVAILABLE"
    patient = replace(crowded.control, seconds=60)
    patient.load("tokenize")
    time.sleep(1)
    pid = processes.named(crowded.pid)["tokenize"]
    kill(crowded, "tokenize")  # it is looked after again
    until_back(crowded, "tokenize", pid)


def test_streams_outlive_the_target_a_drafter_and_a_tokenizer_at_once(crowded: Server) -> None:
    """All three are reloaded at once, within the limit."""
    with streams(crowded, "draft_ngram", "draft_code"):
        old = processes.named(crowded.pid)
        kill(crowded, "target", "draft_code", "tokenize")
        for model in ("tokenize", "target", "draft_code"):
            until_back(crowded, model, old[model])
    assert "can't start new thread" not in crowded.log_text()
    assert threads(crowded).total() < IDLE


@pytest.mark.slow
def test_ten_deaths_within_calls_cost_what_triton_keeps_of_them_and_no_more(crowded: Server) -> None:
    before = threads(crowded)
    with streams(crowded, "draft_ngram", "draft_ngram"):
        for _ in range(10):
            old = processes.named(crowded.pid)["draft_ngram"]
            kill(crowded, "draft_ngram")
            until_back(crowded, "draft_ngram", old)
    until_ended(crowded, before, 10 * A_DEATH + 8)
    assert threads(crowded).total() < IDLE

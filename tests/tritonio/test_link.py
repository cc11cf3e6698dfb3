"""The line between two models: a break is seen at both ends, whatever broke."""

from __future__ import annotations

import os
import queue
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Client
from pathlib import Path

import numpy as np
import pytest

from covey.contracts.errors import BadField, PortError
from covey.tritonio import link
from covey.wire import frames
from tests.waiting import until

SECONDS = 10.0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def listening(receive: link.Receive, lost: link.Lost = lambda _peer: None) -> Iterator[None]:
    exchange = link.Exchange("covey", receive, lost)
    try:
        yield
    finally:
        exchange.close()


def nothing(_peer: link.Peer, _message: link.Message) -> None:
    pass


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")


def test_a_handler_that_fails_cuts_the_line_at_both_ends() -> None:
    here, there = threading.Event(), threading.Event()

    def fail(_peer: link.Peer, _message: link.Message) -> None:
        raise KeyError("unforeseen")

    with listening(fail, lambda _peer: there.set()):
        peer = link.connect("covey", nothing, lambda _peer: here.set())
        peer.send(link.Message(1, "submit"))
        assert there.wait(SECONDS)
        assert here.wait(SECONDS)


def test_draining_is_acknowledged() -> None:
    heard: list[link.Message] = []

    def receive(peer: link.Peer, message: link.Message) -> None:
        heard.append(message)
        peer.send(link.Message(0, "draining"))

    with listening(receive):
        link.refuse_requests("covey", os.getppid())
    assert heard == [link.Message(0, "drain")]


@pytest.mark.parametrize("ready", [True, False, None])
def test_whether_it_serves_is_asked_over_the_link_and_leaves_no_thread(
    ready: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "ANSWER_SECONDS", 0.2 if ready is None else SECONDS)
    before = set(threading.enumerate())

    def receive(peer: link.Peer, message: link.Message) -> None:
        if ready is not None:  # else it is busy
            peer.send(link.Message(0, "serves", ready and message.kind == "serves"))

    with listening(receive):
        for _ in range(2):
            assert link.serves("covey", os.getppid()) is bool(ready)
        until(lambda: all(each.name != "link" for each in set(threading.enumerate()) - before))


def test_nobody_listens(folder: Path) -> None:
    with pytest.raises(PortError, match="covey is not up"):
        link.connect("covey", nothing, lambda _peer: None)
    assert not list(folder.iterdir()), "asking makes no folder"


def test_a_folder_that_others_may_change_is_not_trusted(folder: Path) -> None:
    with listening(nothing):
        (private,) = folder.iterdir()
        private.chmod(0o777)
        with pytest.raises(PortError, match="can be changed by other users"):
            link.connect("covey", nothing, lambda _peer: None)


def test_what_is_no_message_cuts_the_line_and_runs_nothing(folder: Path) -> None:
    cut = threading.Event()
    heard: list[link.Message] = []
    with (
        listening(lambda _peer, message: heard.append(message), lambda _peer: cut.set()),
        Client(str(link.address("covey", os.getppid())), "AF_UNIX") as stranger,
    ):
        stranger.send(Touch(str(folder / "ran")))  # pickled
        assert cut.wait(SECONDS)
    assert not heard
    assert not (folder / "ran").exists()


def test_what_is_too_long_is_not_sent_and_the_line_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MOST_BYTES", 1000)
    heard: queue.SimpleQueue[link.Message] = queue.SimpleQueue()
    with listening(lambda _peer, message: heard.put(message)):
        peer = link.connect("covey", nothing, lambda _peer: None)
        with pytest.raises(BadField, match=r"request: got .* bytes"):
            peer.send(link.Message(1, "submit", arrays={"input_ids": np.zeros(1000, np.int32)}))
        peer.send(link.Message(2, "submit"))
        assert heard.get(timeout=SECONDS) == link.Message(2, "submit")
        peer.close()


@contextmanager
def full(path: Path) -> Iterator[None]:
    """Somebody listens there, takes no calls, and has a full queue of callers."""
    with ExitStack() as held:
        listener = held.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(path))
        listener.listen(0)
        with suppress(BlockingIOError):
            while True:
                caller = held.enter_context(socket.socket(socket.AF_UNIX))
                caller.setblocking(False)
                caller.connect(str(path))
        yield


def test_who_takes_no_calls_is_not_waited_for() -> None:
    """As who is to see that its server has ended meanwhile."""
    path = link.address("covey", os.getppid())
    path.parent.mkdir(0o700)
    with full(path), pytest.raises(PortError, match="covey is not up"):
        link.serves("covey", os.getppid())

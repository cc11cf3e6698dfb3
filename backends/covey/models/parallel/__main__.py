"""Runs one rank but the first: loads its share, then does what rank 0 tells it, until that one is gone."""

from __future__ import annotations

import fcntl
import logging
import os
import select
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from covey.contracts.errors import CoveyError
from covey.models.model import PagedModel
from covey.models.parallel.group import Group


def main(descriptor: int, lifeline: int) -> int:
    _end_with(lifeline)
    channel = Connection(descriptor)
    order = channel.recv()
    logging.basicConfig(level=logging.WARNING, format=f"rank {order['rank']}: %(levelname)s: %(message)s")
    torch.set_num_threads(order["threads"])
    device = torch.device(order["device"], order["rank"]) if order["device"] == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    group = Group(order["rank"], order["size"], Path(order["meeting"]), device, lambda: channel.send(None))
    try:
        model = PagedModel(**order["model"], group=group)
    except CoveyError as error:
        channel.send(error)
        return 1
    _follow(channel, model)
    return 0


def _follow(channel: Connection, model: PagedModel) -> None:
    while True:
        try:
            method, given = channel.recv()
        except (EOFError, OSError):
            return
        getattr(model, method)(*given)


def _end_with(lifeline: int) -> None:
    """End when the pipe's other end is closed, wherever this process is, as in a sum that waits for rank 0."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    end = select.poll()
    end.register(lifeline, 0)
    if end.poll(0):  # closed before the kernel was asked to tell
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))

"""A stand-in for `covey_vllm.engine` that knows no vLLM: it answers by the hash of `tests.fakes`, two tokens a step.

What a prompt begins with says what becomes of it.
"""

from __future__ import annotations

import os
import queue
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from covey.contracts.types import Finish
from covey.tritonio.link import Peer
from covey.wire.frames import Message
from covey_vllm import messages
from covey_vllm.messages import Brought
from tests.fakes import VOCAB, next_token

DIES, REFUSED, HANGS, FAILS = 13, 17, 19, 23
ROUND = {
    **{"rows": 1, "decoding": 1, "prefill_tokens": 0, "trees": 1, "drafted": 2, "accepted": 1, "emitted": 2},
    **{"plan_seconds": 0.1, "draft_seconds": 0.2, "verify_seconds": 0.3, "pass_seconds": 0.3, "commit_seconds": 0.0},
    **{"waiting": 0, "running": 1, "free_blocks": 0, "total_blocks": 0, "reused": 0, "preempted": 0},
    **{"catch_up_seconds": 0.0, "drafter": ["small"], "depth": [2], "sizes": [2], "accepts": [1], "read": {}},
}
NEWS = {
    **{"rounds": [ROUND], "decisions": [{"line": "a choice"}], "states": {"small": "serving"}},
    "totals": [["covey_planner_rounds_total", {"depth": "2"}, 1.0]],
    "gauges": [["covey_drafter_serving", {"drafter": "small"}, 1.0]],
    **{"running": 1, "waiting": 0, "preempted": 0, "usage": 0.25, "reused": 5},
}


def facts() -> dict[str, Any]:
    return {
        **{"vocab_size": VOCAB, "max_positions": 200, "block_size": 32, "total_blocks": 100, "end_ids": [0]},
        **{"dtype": "float32", "device": "cpu"},
    }


def serve(peer: Peer, inbox: queue.SimpleQueue[Message]) -> None:
    open_: dict[int, tuple[list[int], int, int]] = {}  # by key: tokens, of these the prompt, and the most of output
    while True:
        while not inbox.empty() or not open_:
            message = inbox.get()
            if message.kind == messages.CANCEL:
                open_.pop(message.exchange, None)
                continue
            prompt = message.arrays["prompt"].tolist()
            if prompt[0] == DIES:
                os._exit(3)
            if prompt[0] == REFUSED:
                peer.send(Message(message.exchange, messages.REFUSED, "ValueError: not this one"))
                continue
            open_[message.exchange] = prompt, len(prompt), message.value["max_tokens"]
        found = []
        for key, (tokens, start, most) in list(open_.items()):
            if tokens[0] == HANGS:
                continue
            new: list[int] = []
            for _ in range(min(2, start + most - len(tokens))):
                new.append(next_token([*tokens, *new]))
            tokens += new
            scores, top = [-0.5] * len(new), [[(token, -0.5), (1, -2.0)] for token in new]
            ended = Finish.LENGTH if len(tokens) == start + most else None
            ended = Finish.ERROR if tokens[0] == FAILS else ended
            drafts = {"drafted": 4, "accepted": 2, "acceptance": [0, 2], "drafters": [["small", 4, 2]]}
            found.append(Brought(key, new, scores, top, ended, reused=3, queued=0.25, drafts=drafts))
            if ended is not None:
                del open_[key]
        if found:
            peer.send(messages.step(found))
            peer.send(Message(0, messages.NEWS, NEWS))
        time.sleep(0.001)


def main() -> None:
    inbox = queue.SimpleQueue[Message]()
    peer = Peer(Connection(int(sys.argv[-1])), lambda _peer, message: inbox.put(message), lambda _peer: os._exit(0))
    arguments = inbox.get().value
    if arguments["dtype"] == "float64":
        peer.send(Message(0, messages.FAILED, "ValueError: no such type"))
        return
    if arguments["dtype"] == "float16":
        os._exit(3)
    peer.send(Message(0, messages.LOADED, facts()))
    serve(peer, inbox)


if __name__ == "__main__":
    main()

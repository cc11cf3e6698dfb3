"""A Triton backend that speaks Covey's wire names and does what the prompt says; a test copies it beside model.py.

Prompts: `count N` answers N words; `slow N` one word every 50 ms; `hang` nothing until it is cancelled, or for 5 s;
`short` ends without a finish reason; `late` fails after two words; `error TEXT` fails with TEXT; `settings` answers
what it was given, `outputs` which outputs as well; `die` ends the process. A cancelled request leaves a file named
after its tenant in the folder `marks`.
"""

import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

COUNTS = ("num_input_tokens", "num_output_tokens", "num_reused_tokens", "total_draft_tokens")


class TritonPythonModel:
    def initialize(self, args):
        self.config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in self.config.get("parameters", {}).items()}
        self.marks = Path(parameters.get("marks", "/nowhere"))
        self.decoupled = self.config["model_transaction_policy"]["decoupled"]
        time.sleep(float(parameters.get("sleep", 0)))  # a load that takes so long
        first = Path(parameters["hang"]) if "hang" in parameters else None
        if first is not None and not first.exists():  # a load that never ends, once
            first.touch()
            threading.Event().wait()
        if "fail" in parameters:
            raise RuntimeError(parameters["fail"])

    def execute(self, requests):
        if not self.decoupled:
            return [self.whole(self.given(request)) for request in requests]
        for request in requests:
            sender, given = request.get_response_sender(), self.given(request)
            threading.Thread(target=self.answer, args=(sender, given), daemon=True).start()
        return None

    def given(self, request):
        found = {}
        for tensor in request.inputs():
            values = [v.decode() if isinstance(v, bytes) else v for v in tensor.as_numpy().copy().ravel().tolist()]
            many = tensor.name() in ("input_ids", "stop_words", "bad_words")
            found[tensor.name()] = values if many else values[0]
        if found.get("text_input") == "outputs":
            found["wanted"] = sorted(request.requested_output_names())
        return found

    def answer(self, sender, given):
        word, _, rest = given.get("text_input", "count 3").partition(" ")
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if word == "die":
            os._exit(1)
        if word == "error":
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(rest)), final)
        elif word == "short":
            sender.send(self.response("w0 ", [0], ""))
            sender.send(flags=final)
        elif word == "hang":
            self.until_cancelled(sender, given)
        elif word in ("settings", "outputs", "count") and not given.get("stream", False):
            sender.send(self.whole(given), final)
        else:
            self.words(sender, given, word, int(rest or 3))

    def words(self, sender, given, word, count):
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        for index in range(count):
            if sender.is_cancelled():
                self.mark(given)
                sender.send(self.response("", [], "cancelled"), final)
                return
            if word == "late" and index == 2:
                error = pb_utils.TritonError("[INTERNAL] the target failed")
                sender.send(pb_utils.InferenceResponse(error=error), final)
                return
            last = index == count - 1
            sender.send(self.response(f"w{index} ", [index], "length" if last else "", index + 1))
            if word == "slow":
                time.sleep(0.05)
        sender.send(flags=final)

    def until_cancelled(self, sender, given):
        until = time.monotonic() + 5  # an HTTP client that has gone is never noticed
        while not sender.is_cancelled():
            if time.monotonic() > until:
                break
            time.sleep(0.02)
        else:
            self.mark(given)
        sender.send(self.response("", [], "cancelled"), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def mark(self, given):
        (self.marks / given.get("tenant", "somebody")).touch()

    def whole(self, given):
        word, _, rest = given.get("text_input", "count 3").partition(" ")
        if word in ("settings", "outputs"):
            return self.response(json.dumps(given), [1], "eos", 1)
        count = int(rest or 3)
        text = "".join(f"w{index} " for index in range(count))
        return self.response(text, list(range(count)), "length", count)

    def response(self, text, ids, finish, total=0):
        def one(name, value, dtype):
            return pb_utils.Tensor(name, np.array([value], dtype=dtype))

        counts = [one(name, total, np.int32) for name in COUNTS]
        return pb_utils.InferenceResponse(
            [
                one("text_output", text.encode(), object),
                pb_utils.Tensor("output_ids", np.array(ids, np.int32)),
                pb_utils.Tensor("output_log_probs", np.array([-0.5] * len(ids), np.float32)),
                one("finish_reason", finish.encode(), object),
                one("used_seed", (1 << 64) - 3, np.uint64),
                one("acceptance_rate", 0.25, np.float32),
                one("total_accepted_draft_tokens", total // 2, np.int32),
                *counts,
            ]
        )

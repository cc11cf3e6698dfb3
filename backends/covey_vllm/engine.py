"""vLLM's engine as a process behind Covey's public model: `python -m covey_vllm.engine FD`, in vLLM's environment.

FD is one end of a line (`covey_vllm.messages`), whose other end the public model has; when that is closed, this process
ends. vLLM's `LLMEngine` runs in this process and thread, with no server of its own: text and addresses are the public
model's business, and what the proposer tells is at hand between two steps.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from covey.contracts.types import GREEDY_BELOW, LEAST_LOGPROB, Finish, JsonDict
from covey.tritonio.link import Peer
from covey.wire.frames import Message
from covey_vllm import messages
from covey_vllm.messages import Brought

OPENMP = "libiomp5.so"  # which vLLM's build for CPUs must find loaded before anything else computes
NEWS_SECONDS = 0.25
FINISH = {"stop": Finish.EOS, "length": Finish.LENGTH}  # of vLLM's reasons; any other is an error
log = logging.getLogger("covey.vllm")


class Engine:
    """Owns vLLM's engine and which requests it has."""

    def __init__(self, arguments: JsonDict, peer: Peer, inbox: queue.SimpleQueue[Message]) -> None:
        """Loads the model."""
        from vllm.engine.arg_utils import EngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.llm_engine import LLMEngine

        config = EngineArgs(**arguments).create_engine_config(UsageContext.ENGINE_CONTEXT)
        self._counted = Counted()
        loggers: Any = [lambda *_: self._counted]
        self._engine = LLMEngine.from_vllm_config(config, stat_loggers=loggers)
        self._engine.collective_rpc("covey_attend")
        self._peer, self._inbox = peer, inbox
        self._open: dict[int, tuple[str, int]] = {}  # by key: vLLM's own name, and how many of the likeliest are told
        self._told, self._untold = 0.0, False

    def facts(self) -> JsonDict:
        """Return what the public model must know. Requests that end within two drafts of the longest text would have
        vLLM draft for nobody."""
        config = self._engine.vllm_config
        model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
        config_ends = getattr(model.hf_config, "eos_token_id", None)
        ends = model.try_get_generation_config().get("eos_token_id", config_ends)
        return {
            "vocab_size": model.get_vocab_size(),
            "max_positions": model.max_model_len - 2 * config.speculative_config.num_speculative_tokens,
            "block_size": cache.block_size,
            "total_blocks": cache.num_gpu_blocks,
            "end_ids": ends if isinstance(ends, list) else [] if ends is None else [ends],
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": config.device_config.device_type,
            "max_running": scheduler.max_num_seqs,
            "token_budget": scheduler.max_num_batched_tokens,
        }

    def run(self) -> None:
        """Step while there are requests; for ever."""
        while True:
            while not self._inbox.empty() or not self._engine.has_unfinished_requests():
                if self._untold and not self._engine.has_unfinished_requests():
                    self._tell()
                self._take(self._inbox.get())
            self._bring(self._engine.step())
            self._untold = True
            if time.monotonic() - self._told > NEWS_SECONDS:
                self._tell()

    def _take(self, message: Message) -> None:
        key, wanted = message.exchange, message.value
        if message.kind == messages.CANCEL:
            if key in self._open:
                self._engine.abort_request([self._open.pop(key)[0]], internal=True)
            return
        prompt = {"prompt_token_ids": message.arrays["prompt"].tolist()}
        if wanted["tenant"]:
            prompt["cache_salt"] = wanted["tenant"]
        try:
            name = self._engine.add_request(str(key), prompt, _params(wanted), priority=-wanted["priority"])
        except Exception as error:  # of one request, whatever vLLM finds wrong with it
            if not isinstance(error, ValueError):
                log.exception("a request was not taken")
            self._peer.send(Message(key, messages.REFUSED, f"{type(error).__name__}: {error}"))
            return
        self._open[key] = name, wanted["sampling"]["top_logprobs"]

    def _bring(self, outputs: list[Any]) -> None:
        found = [self._brought(each) for each in outputs if int(each.request_id) in self._open]
        if not found:
            return
        drafts = self._of_proposer("covey_drafts_of", [self._open[each.key][0] for each in found])
        if drafts is not None:
            found = [each._replace(drafts=own) for each, own in zip(found, drafts)]
        for each in found:
            if each.finish is not None:
                del self._open[each.key]
        self._peer.send(messages.step(found))

    def _brought(self, output: Any) -> Brought:
        key, completion, stats = int(output.request_id), output.outputs[0], output.metrics
        tokens = list(completion.token_ids)
        scores, top = _logprobs(completion.logprobs or (), tokens, self._open[key][1])
        ended = None if not output.finished else FINISH.get(completion.finish_reason, Finish.ERROR)
        queued = None if stats is None or not stats.scheduled_ts else stats.scheduled_ts - stats.queued_ts
        return Brought(key, tokens, scores, top, ended, output.num_cached_tokens or 0, queued)

    def _tell(self) -> None:
        self._told, self._untold = time.monotonic(), False
        idle = {} if self._engine.has_unfinished_requests() else {"running": 0, "waiting": 0}
        news = self._of_proposer("covey_news") or {}
        self._peer.send(Message(0, messages.NEWS, news | self._counted.take() | idle))

    def _of_proposer(self, method: str, *given: Any) -> Any:
        """Return the answer of the one worker that drafts; None where it has none."""
        return next((each for each in self._engine.collective_rpc(method, args=given) if each), None)


class Counted:
    """Implements vLLM's `StatLoggerBase`: what its scheduler says of itself."""

    def __init__(self) -> None:
        self._now: JsonDict = {"running": 0, "waiting": 0, "preempted": 0, "usage": 0.0, "reused": 0}

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        if scheduler_stats is not None:
            self._now["running"] = scheduler_stats.num_running_reqs
            self._now["waiting"] = scheduler_stats.num_waiting_reqs
            self._now["usage"] = scheduler_stats.kv_cache_usage
            self._now["reused"] += scheduler_stats.prefix_cache_stats.hits
        if iteration_stats is not None:
            self._now["preempted"] += iteration_stats.num_preempted_reqs

    def take(self) -> JsonDict:
        """Return the present figures; `reused` counts since the last call."""
        told, self._now = self._now, self._now | {"reused": 0}
        return told

    def log(self) -> None: ...

    def log_engine_initialized(self) -> None: ...


def _params(wanted: Mapping[str, Any]) -> Any:
    """Return vLLM's parameters of a request; its `SamplingParams` raises for what it does not take."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    given = wanted["sampling"]
    greedy = given["temperature"] < GREEDY_BELOW
    kind, text = json.loads(given["grammar"]) if given["grammar"] else ("", "")
    params = SamplingParams(
        temperature=0.0 if greedy else given["temperature"],
        top_k=given["top_k"],
        top_p=given["top_p"],
        repetition_penalty=given["repetition_penalty"],
        presence_penalty=given["presence_penalty"],
        frequency_penalty=given["frequency_penalty"],
        min_tokens=given["min_tokens"],
        max_tokens=wanted["max_tokens"],
        ignore_eos=True,  # ends are those that the request names
        stop_token_ids=given["end_ids"],
        seed=None if greedy else given["seed"],
        structured_outputs=StructuredOutputsParams(**{kind: text}) if text else None,
        logprobs=given["top_logprobs"] if given["logprobs"] or given["top_logprobs"] else None,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        extra_args={name: wanted[name] for name in ("speculation", "drafter", "tenant")},
    )
    params._bad_words_token_ids = given["bad_words"] or None  # it takes texts, and cuts them into tokens by itself
    return params


def _logprobs(given: Any, tokens: list[int], most: int) -> tuple[list[float], list[list[tuple[int, float]]]]:
    """Return each token's own log-probability, and those of the likeliest, the likeliest first."""
    scores, top = [], []
    for place, token in zip(given, tokens):
        scores.append(max(place[token].logprob, LEAST_LOGPROB))
        ranked = sorted(place.items(), key=lambda each: each[1].rank)[:most]
        top.append([(each, max(score.logprob, LEAST_LOGPROB)) for each, score in ranked])
    return scores, top


def preload() -> None:
    """Begin anew with the OpenMP library of this environment in front of all others, where it has one."""
    found = Path(sys.prefix) / "lib" / OPENMP
    if found.is_file() and OPENMP not in os.environ.get("LD_PRELOAD", ""):
        words = [sys.executable, "-m", "covey_vllm.engine", *sys.argv[1:]]
        os.execve(sys.executable, words, {**os.environ, "LD_PRELOAD": str(found)})


def main(fd: int) -> None:
    os.set_inheritable(fd, False)
    inbox = queue.SimpleQueue[Message]()
    peer = Peer(Connection(fd), lambda _peer, message: inbox.put(message), lambda _peer: os._exit(0))
    try:
        engine = Engine(inbox.get().value, peer, inbox)
    except Exception as error:
        log.exception("vLLM cannot load")
        peer.send(Message(0, messages.FAILED, f"{type(error).__name__}: {error}"))
        return
    peer.send(Message(0, messages.LOADED, engine.facts()))
    engine.run()


if __name__ == "__main__":
    preload()
    logging.basicConfig(format="%(name)s: %(message)s")
    main(int(sys.argv[1]))

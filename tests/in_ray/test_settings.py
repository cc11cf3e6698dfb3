"""What Ray is asked for, by what is set; and how requests are told apart."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic
import pytest
import yaml
from ray.serve.schema import DeploymentSchema, ServeDeploySchema

from covey.contracts import profile
from covey.launcher import bundled
from covey_ray.asked import LONGEST, SESSION, routed_by
from covey_ray.resources import asks
from covey_ray.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "ray.md"
BLOCKS = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"command": ["serve"]}, "must contain {port}"),
        ({"command": ["serve", "{port}"], "model": "m"}, "in the command's own words"),
        ({"profil": "demo-cpu"}, "profil"),
        ({"drain_seconds": 0}, "drain_seconds"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=named):
        Settings.model_validate(given)


def test_what_a_profile_needs_is_asked_of_ray() -> None:
    demo, large = profile.load("demo-cpu"), profile.load("qwen2.5-7b")
    assert asks(demo, "")["num_cpus"] == demo.target.threads + 1
    assert asks(demo, "")["num_gpus"] == 0
    assert asks(demo, "")["memory"] > demo.target.kv_memory_mb << 20
    assert asks(large, "")["num_gpus"] == 1
    star = asks(profile.load("star-target"), "")
    assert star["num_cpus"] == 1, "its drafter is elsewhere"
    assert asks(profile.load("star-drafters"), "")["num_cpus"] == 1


def key(body: Mapping[str, Any], **headers: str) -> str:
    return routed_by(body, {name.replace("_", "-"): value for name, value in headers.items()}, "/v1/completions")


def test_prompts_that_begin_alike_are_routed_alike() -> None:
    rules = {"role": "system", "content": "Be kind."}
    one, two = (key({"messages": [rules, {"role": "user", "content": each}]}) for each in ("Hello", "Good day"))
    assert one.startswith("\nBe kind.\n")
    assert two.startswith("\nBe kind.\n")
    parts = [{"type": "text", "text": "Hello"}]
    assert "Hello" in key({"messages": [{"role": "user", "content": parts}]})
    assert key({"prompt": [1, 2, 3]})[:-1] == key({"prompt": [1, 2, 3, 4]})[: len("\n[1, 2, 3")]
    assert len(key({"prompt": "a" * 100_000})) <= LONGEST + 1


def test_tenants_and_sessions_are_told_apart() -> None:
    assert key({"prompt": "a", "tenant": "east"}) != key({"prompt": "a", "tenant": "west"})
    assert key({"prompt": "a"}, **{SESSION: "7"}) == key({"prompt": "b"}, **{SESSION: "7"}) != key({"prompt": "a"})


@pytest.mark.parametrize(
    "body", [{}, {"prompt": ""}, {"messages": []}, {"messages": 3}, {"messages": [3]}, {"prompt": 0}]
)
def test_the_key_is_never_empty(body: dict[str, Any]) -> None:
    assert key(body)


@pytest.mark.parametrize("block", BLOCKS)
def test_the_page_says_what_serve_and_its_application_take(block: str) -> None:
    found = yaml.safe_load(textwrap.dedent(block))
    if isinstance(found, list):
        found = {"deployments": found}
    if "applications" in found:
        (found,) = ServeDeploySchema.model_validate(found).model_dump(exclude_unset=True)["applications"]
    Settings.model_validate(found.get("args", {}))
    for deployment in found.get("deployments", ()):
        made = DeploymentSchema.model_validate(deployment)
        assert made.name in ("Server", "Ingress")


def test_the_real_model_s_profile_asks_for_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVEY_MODELS", str(tmp_path))
    own, folder = profile.load("smollm2"), bundled.folder(tmp_path)
    missing = asks(own, "")["memory"]
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(5000))
    assert asks(own, "")["memory"] - missing == 5000

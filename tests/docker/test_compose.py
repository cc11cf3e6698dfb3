"""What the compose files promise: a secret in every file, one published port, nothing as root."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import covey
from covey import profile
from covey.server import Options

DOCKER = Path(covey.__file__).parents[2] / "docker"
FILES = sorted(DOCKER.glob("compose*.yaml"))
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")


def services(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["services"]
    return found


def published(service: Any) -> list[str]:
    return [str(port) for port in service.get("ports", ())]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_demands_the_secret(path: Path) -> None:
    for name, service in services(path).items():
        if name == "covey":
            assert service["environment"]["COVEY_ADMIN_SECRET"].startswith("${COVEY_ADMIN_SECRET:?")
    assert "covey" in services(path)


def test_only_the_public_port_is_published_by_default() -> None:
    ports = {name: published(service) for name, service in services(DOCKER / "compose.yaml").items()}
    assert {name: found for name, found in ports.items() if found} == {"covey": ["${COVEY_PORT:-8000}:8010"]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_overlays_publish_on_loopback_alone(path: Path) -> None:
    if path.stem != "compose":
        for service in services(path).values():
            assert all(port.startswith("127.0.0.1:") for port in published(service))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_images_are_pinned(path: Path) -> None:
    for service in services(path).values():
        image = service.get("image", "")
        default = re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", image)
        if image and not default.startswith("covey:"):
            assert re.search(r":v?\d+\.\d+", default), image


def test_the_server_gets_shared_memory_and_time_to_drain() -> None:
    server = services(DOCKER / "compose.yaml")["covey"]
    assert server["shm_size"] == "1g"
    assert server["pids_limit"] == "${COVEY_PIDS_LIMIT:-2048}"
    seconds = {
        name: int(re.fullmatch(rf"\$\{{{name}:-(\d+)s?\}}", server_value)[1])  # type: ignore[index]
        for name, server_value in (
            ("COVEY_STOP_GRACE", server["stop_grace_period"]),
            ("COVEY_DRAIN_SECONDS", server["environment"]["COVEY_DRAIN_SECONDS"]),
        )
    }
    assert seconds["COVEY_STOP_GRACE"] > seconds["COVEY_DRAIN_SECONDS"] + Options().stop_seconds
    assert server["cap_drop"] == ["ALL"]


def test_every_image_of_our_own_is_built_by_the_service_that_uses_it() -> None:
    """An overlay may give the server another target: whoever needs the first one then still has it."""
    server = services(DOCKER / "compose.yaml")["covey"]
    for path in FILES:
        for name, service in services(path).items():
            if ":-covey:" in service.get("image", "") and "build" not in service:
                assert "covey" in service["depends_on"], f"{path.stem}: {name} has an image that nobody builds"
            elif ":-covey:" in service.get("image", ""):
                assert service["build"]["target"] in ("cpu", "triton", "loadtest"), f"{path.stem}: {name}"
                assert name == "covey" or service["image"] != server["image"], "two builds of one tag at once"
    assert services(DOCKER / "compose.huggingface.yaml")["fetch"]["build"] == server["build"]


def test_whoever_calls_the_server_waits_until_it_is_healthy() -> None:
    assert services(DOCKER / "compose.yaml")["loadtest"]["depends_on"] == {"covey": {"condition": "service_healthy"}}
    for path in (DOCKER / "compose.yaml", DOCKER / "README.md"):
        for line in path.read_text(encoding="utf-8").splitlines():
            assert " up -d" not in line or "--wait" in line, f"{path.name}: {line}"


def test_the_overlays_that_are_described_publish_what_they_promise() -> None:
    head = (DOCKER / "compose.yaml").read_text(encoding="utf-8").split("\nname:", 1)[0]
    promised = next(line for line in head.splitlines() if "compose.open.yaml" in line).lower()
    opened = {name for name, service in services(DOCKER / "compose.open.yaml").items() if published(service)}
    assert opened == {"covey", "prometheus", "grafana"}
    assert "locust" not in promised
    assert "prometheus" in promised
    assert "grafana" in promised


def test_both_targets_of_the_image_are_alike_and_not_root() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    by_name = {re.search(r"AS (\w+)", stage)[1]: stage.split("\n", 1)[1] for stage in stages}  # type: ignore[index]
    cpu, triton = by_name["cpu"], by_name["triton"]
    assert triton.replace("    COVEY_TRITON=/opt/tritonserver \\\n", "") == cpu
    for stage in by_name.values():
        users = re.findall(r"^USER (\d+)", stage, re.MULTILINE)
        assert users[-1] == "10001"
    assert "HEALTHCHECK --interval" in cpu
    assert re.search(r"^ARG TRITON_IMAGE=nvcr\.io/nvidia/tritonserver:\d\d\.\d\d-py3$", DOCKERFILE, re.MULTILINE)


def test_the_build_context_has_what_the_image_copies() -> None:
    ignored = (DOCKER.parent / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert f"!{source}" in ignored, source
            assert (DOCKER.parent / source).exists(), source


def test_profiles_that_compose_names_exist() -> None:
    for path in FILES:
        for name in re.findall(r"COVEY_PROFILE:-([\w.-]+)\}", path.read_text(encoding="utf-8")):
            assert profile.find(name)


def test_profiles_name_models_that_exist() -> None:
    for path in profile.profiles_folder().glob("*.toml"):
        for model in profile.load(path.stem).models:
            assert (DOCKER.parent / "model_repository" / model / "config.pbtxt").is_file(), f"{path.stem}: {model}"


def test_the_entrypoint_refuses_to_start_without_a_secret() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "COVEY_ADMIN_SECRET"}
    ran = subprocess.run(
        [DOCKER / "entrypoint"], env=environment, check=False, capture_output=True, text=True, timeout=20
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith("covey: set COVEY_ADMIN_SECRET")


def test_smoke_says_when_it_is_skipped(tmp_path: Path) -> None:
    for name in ("bash", "dirname", "mktemp", "rm", "env", "timeout"):
        found = shutil.which(name)
        assert found
        (tmp_path / name).symlink_to(found)
    ran = subprocess.run(
        [DOCKER / "smoke"], env={"PATH": str(tmp_path)}, check=False, capture_output=True, text=True, timeout=20
    )
    assert ran.returncode == 77
    assert ran.stdout == "docker/smoke skipped: neither a docker engine nor podman is here\n"


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(1500)
def test_smoke() -> None:
    ran = subprocess.run([DOCKER / "smoke"], check=False, capture_output=True, text=True, timeout=1400)
    if ran.returncode == 77:
        pytest.skip(ran.stdout.strip().splitlines()[-1])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.endswith("docker/smoke passed\n")

"""What the compose files promise: a secret in every file, one published port, nothing as root."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import covey
from covey.contracts import profile
from covey.launcher import Options
from covey_client import secret

DOCKER = Path(covey.__file__).parents[2] / "docker"
FILES = sorted(DOCKER.glob("compose*.yaml"))
WHOLE = [DOCKER / name for name in ("compose.yaml", "compose.star.yaml")]  # the others go behind the first
FILE = secret.FILE_VARIABLE
DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")


def services(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["services"]
    return found


def published(service: Any) -> list[str]:
    return [str(port) for port in service.get("ports", ())]


def servers(path: Path) -> dict[str, Any]:
    """The services of this file that serve models, but for those of an overlay, which are one already."""
    return {name: service for name, service in services(path).items() if ":-covey:cpu}" in service.get("image", "")}


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_a_secret_is_demanded_by_its_name_and_is_a_file(path: Path) -> None:
    declared = yaml.safe_load(path.read_text(encoding="utf-8"))["secrets"]["admin"]
    asked, said = re.fullmatch(r"\$\{(\w+):\?(.*)\}", declared["file"]).groups()  # type: ignore[union-attr]
    assert asked == secret.FILE_VARIABLE
    assert secret.FILE_VARIABLE in said, "some engines say these words alone"
    for service in servers(path).values():
        assert service["secrets"] == ["admin"]
        assert service["environment"][secret.FILE_VARIABLE] == "/run/secrets/admin"


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_a_server_is_bounded_read_only_and_keeps_what_it_learns(path: Path) -> None:
    whole = yaml.safe_load(path.read_text(encoding="utf-8"))
    kept = set()
    for service in servers(path).values():
        assert service["init"] is True
        assert service["read_only"] is True
        assert service["tmpfs"] == ["/tmp:exec,mode=1777"]
        assert re.fullmatch(r"\$\{COVEY_MEMORY_LIMIT:-\d+g\}", service["mem_limit"])
        assert service["restart"] == "unless-stopped"
        assert service["shm_size"] == "1g"
        assert service["pids_limit"] == "${COVEY_PIDS_LIMIT:-2048}"
        assert service["cap_drop"] == ["ALL"]
        kept |= {volume.partition(":")[0] for volume in service["volumes"] if volume.endswith(":/var/lib/covey")}
    assert len(kept) == len(servers(path)), "each has one of its own"
    assert kept <= set(whole["volumes"])
    assert "ENV COVEY_KEPT=/var/lib/covey\n" in DOCKERFILE


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_service_keeps_what_is_promised(path: Path) -> None:
    """No secret is where everybody can inspect it, images are pinned, overlays publish on loopback alone, logs are
    rotated, and folders of the machine may be read."""
    for name, service in services(path).items():
        environment = service.get("environment", {})
        assert secret.VARIABLE not in environment
        for variable, value in environment.items():
            assert "PASSWORD" not in variable or (variable.endswith("__FILE") and value == "/run/secrets/admin")
        image = re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", service.get("image", ""))
        assert not image or image.startswith("covey:") or re.search(r":v?\d+\.\d+", image), image
        assert path.stem == "compose" or all(port.startswith("127.0.0.1:") for port in published(service))
        if "image" in service and "depends_on" not in service and name != "covey":
            assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}, name
        for volume in service.get("volumes", ()):
            if volume.startswith(("./", "${")):
                assert volume.rpartition(":")[2] in ("ro,z", "z"), f"{name}: {volume}"


def test_only_the_public_port_is_published_by_default() -> None:
    ports = {name: published(service) for name, service in services(DOCKER / "compose.yaml").items()}
    assert {name: found for name, found in ports.items() if found} == {"covey": ["${COVEY_PORT:-8000}:8010"]}


def test_the_server_gets_time_to_drain() -> None:
    server = services(DOCKER / "compose.yaml")["covey"]
    seconds = {
        name: int(re.fullmatch(rf"\$\{{{name}:-(\d+)s?\}}", server_value)[1])  # type: ignore[index]
        for name, server_value in (
            ("COVEY_STOP_GRACE", server["stop_grace_period"]),
            ("COVEY_DRAIN_SECONDS", server["environment"]["COVEY_DRAIN_SECONDS"]),
        )
    }
    assert seconds["COVEY_STOP_GRACE"] > seconds["COVEY_DRAIN_SECONDS"] + Options().stop_seconds


def test_both_targets_of_the_image_are_alike_and_not_root() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    by_name = {re.search(r"AS (\w+)", stage)[1]: stage.split("\n", 1)[1] for stage in stages}  # type: ignore[index]
    cpu, triton = by_name["cpu"], by_name["triton"]
    assert triton.replace("    COVEY_TRITON=/opt/tritonserver \\\n", "") == cpu
    for stage in by_name.values():
        users = re.findall(r"^USER (\d+)", stage, re.MULTILINE)
        assert users[-1] == "10001"
    assert "HEALTHCHECK --interval" in cpu
    assert re.findall(r"^EXPOSE (.*)", cpu, re.MULTILINE) == ["8010 8011"], "the front's, and none of Triton's own"
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


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (None, "covey: set COVEY_ADMIN_SECRET_FILE to a file"),
        ("missing", "covey: COVEY_ADMIN_SECRET_FILE: {}/missing is no file with a secret"),
        ("empty", "covey: COVEY_ADMIN_SECRET_FILE: {}/empty is no file with a secret"),
        ("folder", "covey: COVEY_ADMIN_SECRET_FILE: {}/folder is no file with a secret"),
    ],
)
def test_the_entrypoint_refuses_to_start_without_a_secret(tmp_path: Path, named: str | None, said: str) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in (secret.VARIABLE, FILE)}
    if named is not None:
        environment[FILE] = str(tmp_path / named)
    ran = subprocess.run(
        [DOCKER / "entrypoint"], env=environment, check=False, capture_output=True, text=True, timeout=20
    )
    assert ran.returncode == 2
    assert ran.stderr.startswith(said.format(tmp_path))


@pytest.mark.parametrize(
    ("drafter", "folder"), [("", ""), ("Qwen/Small", "/models/Qwen/Small"), ("/opt/own drafter", "/opt/own drafter")]
)
def test_the_entrypoint_starts_with_the_drafter_that_is_named(tmp_path: Path, drafter: str, folder: str) -> None:
    (tmp_path / "python").write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    (tmp_path / "python").chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        secret.VARIABLE: "a secret",
        "COVEY_TARGET_FOLDER": "/models/Qwen/Large",
        "COVEY_DRAFTER": drafter,
    }
    with (tmp_path / "words").open(
        "w"
    ) as out:  # a pipe would stay open: the log's reader has it until this is waited for
        subprocess.run([DOCKER / "entrypoint"], env=environment, check=True, stdout=out, timeout=20)
    words = (tmp_path / "words").read_text().splitlines()
    more = ["--drafter", folder] if folder else []
    assert words[words.index("--model") :] == ["--model", "/models/Qwen/Large", *more]


@pytest.mark.parametrize(("drafter", "fetched"), [("", ["big"]), ("org/small", ["big", "org/small"])])
def test_models_are_fetched_by_name_with_their_chat_templates(tmp_path: Path, drafter: str, fetched: list[str]) -> None:
    """A library that writes down what it is asked for takes the place of the hub's."""
    hub = (
        "def snapshot_download(name, local_dir, allow_patterns):\n    print('got', name, local_dir, *allow_patterns)\n"
    )
    (tmp_path / "huggingface_hub.py").write_text(hub)
    (script,) = services(DOCKER / "compose.huggingface.yaml")["fetch"]["command"]
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={"TARGET": "big", "DRAFTER": drafter, "PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    got = [line.split()[1:] for line in ran.stdout.splitlines() if line.startswith("got")]
    assert [(name, folder) for name, folder, *_ in got] == [(name, f"/models/{name}") for name in fetched]
    assert all("*.jinja" in patterns for _, _, *patterns in got)


def test_a_drafter_is_used_only_where_one_is_named() -> None:
    found = services(DOCKER / "compose.huggingface.yaml")
    assert found["fetch"]["environment"]["DRAFTER"] == "${COVEY_HF_DRAFTER:-}"
    assert found["covey"]["environment"]["COVEY_DRAFTER"] == "${COVEY_HF_DRAFTER:-}"
    target = found["fetch"]["environment"]["TARGET"]
    assert found["covey"]["environment"]["COVEY_TARGET_FOLDER"] == f"/models/{target}"
    assert "draft_general" not in profile.load("qwen2.5-1.5b").models


def test_the_profile_on_the_page_loads_with_keys_from_the_folder_that_compose_mounts(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", (DOCKER / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "shared.toml").write_text(text)
    front = profile.load(str(tmp_path / "shared.toml")).front
    assert "./own:/run/covey:ro,z" in services(DOCKER / "compose.yaml")["covey"]["volumes"]
    assert (DOCKER / "own").is_dir()
    assert Path(front.keys).parent == Path("/run/covey")
    assert front.proxies


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(1500)
def test_smoke() -> None:
    ran = subprocess.run([DOCKER / "smoke"], check=False, capture_output=True, text=True, timeout=1400)
    if ran.returncode == 77:
        pytest.skip(ran.stdout.strip().splitlines()[-1])
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.endswith("docker/smoke passed\n")

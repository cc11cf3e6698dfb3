"""What the compose files promise: a secret in every file, one published port, nothing as root."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import covey
from covey.contracts import profile
from covey.server import Options
from covey_client import secret

DOCKER = Path(covey.__file__).parents[2] / "docker"
FILES = sorted(DOCKER.glob("compose*.yaml"))
WHOLE = [DOCKER / name for name in ("compose.yaml", "compose.star.yaml")]  # the others go behind the first
FILE = secret.FILE_VARIABLE
INSTALL = (DOCKER / "install").read_text(encoding="utf-8")
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_secret_is_in_an_environment_which_everybody_can_inspect(path: Path) -> None:
    for service in services(path).values():
        environment = service.get("environment", {})
        assert secret.VARIABLE not in environment
        for name, value in environment.items():
            assert "PASSWORD" not in name or (name.endswith("__FILE") and value == "/run/secrets/admin")


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
        assert service["environment"]["COVEY_UNHEALTHY_SECONDS"] == "${COVEY_UNHEALTHY_SECONDS:-}"
        kept |= {volume.partition(":")[0] for volume in service["volumes"] if volume.endswith(":/var/lib/covey")}
    assert len(kept) == len(servers(path)), "each has one of its own"
    assert kept <= set(whole["volumes"])
    assert "ENV COVEY_KEPT=/var/lib/covey\n" in DOCKERFILE


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_logs_are_rotated_and_folders_of_the_machine_may_be_read(path: Path) -> None:
    for name, service in services(path).items():
        if "image" in service and "depends_on" not in service and name != "covey":
            assert service["logging"]["options"] == {"max-size": "10m", "max-file": "3"}, name
        for volume in service.get("volumes", ()):
            if volume.startswith(("./", "${")):
                assert volume.rpartition(":")[2] in ("ro,z", "z"), f"{name}: {volume}"


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


def test_profiles_name_models_that_exist() -> None:
    for path in profile.profiles_folder().glob("*.toml"):
        for model in profile.load(path.stem).models:
            assert (DOCKER.parent / "model_repository" / model / "config.pbtxt").is_file(), f"{path.stem}: {model}"


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


def test_the_image_sets_only_the_modes_that_are_wrong(tmp_path: Path) -> None:
    """A file whose mode is set is stored in the image once more."""
    found = re.search(r"^    find /opt/covey (.*) -exec chmod a\+rX \{\} \+$", INSTALL, re.MULTILINE)
    assert found
    assert not re.search(r"chmod -R", INSTALL)
    modes = {"right": 0o644, "run": 0o755, "odd": 0o600, "unrunnable": 0o744}
    for name, mode in modes.items():
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    (tmp_path / "link").symlink_to(tmp_path / "odd")
    (tmp_path / "closed").mkdir(mode=0o744)
    words = ["find", str(tmp_path), "-mindepth", "1", *shlex.split(found[1]), "-printf", "%f\n"]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert set(printed.split()) == {"odd", "unrunnable", "closed"}


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

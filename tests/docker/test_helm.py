"""What the Helm chart promises, rendered for every set of values: schemas, bounds, nothing as root, no secret in it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from covey.contracts import profile
from covey.launcher.process import LEAVE_SECONDS
from covey.process.private import private_text
from loadtest.options import command_line
from tests.docker.charts import CHART, EVERYTHING, helm, merged, of_kind, pods, render, values

DOCKERFILE = (CHART.parent / "Dockerfile").read_text(encoding="utf-8")
SETS = {"cpu": (), "gpu": ("values-gpu.yaml",), "star": ("values-star.yaml",)}
VERSIONS = ["1.29", "1.37"]  # the oldest and the newest that are said to do
NO_SCHEMAS = {"InferencePool", "InferenceObjective", "ServingRuntime", "InferenceService"}  # not Kubernetes' own
KIB = {"Ki": 1, "Mi": 1 << 10, "Gi": 1 << 20}


@pytest.fixture(scope="module", params=SETS)
def objects(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return render(EVERYTHING, *SETS[request.param])


def kib(quantity: str) -> int:
    return int(quantity[:-2]) * KIB[quantity[-2:]]


def test_helm_has_nothing_against_it() -> None:
    found = helm.lint(str(CHART))
    assert [message for message in found["messages"] if message["severity"] > 1] == []
    assert found["errors"] == []


@pytest.mark.parametrize("given", [{"target": {}}, {"targets": {"replica": 1}}, {"drain": {"seconds": "long"}}])
def test_a_value_that_does_not_exist_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(helm.HelmValuesError, match=r"replica|target|seconds"):
        render(given)


def test_the_schema_knows_every_value() -> None:
    def fits(value: Any, schema: dict[str, Any]) -> bool:
        known = schema.get("properties")
        return known is None or (known.keys() == value.keys() and all(fits(value[key], known[key]) for key in value))

    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert schema["properties"].pop("global"), "Helm's own"
    assert fits(values("values.yaml"), schema)


@pytest.fixture(scope="module")
def schemas_are_read_once() -> Iterator[None]:
    """Each version's are megabytes, read anew for every object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kubernetes_validate.utils, "schema_contents", cache(kubernetes_validate.utils.schema_contents))
        yield


@pytest.mark.usefixtures("schemas_are_read_once")
@pytest.mark.parametrize("version", VERSIONS)
def test_objects_fit_the_schemas_of(version: str, objects: list[dict[str, Any]]) -> None:
    checked = set()
    for each in objects:
        if each["kind"] not in NO_SCHEMAS:
            kubernetes_validate.validate(each, version, strict=True)
            checked.add(each["kind"])
    whole = {"StatefulSet", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "NetworkPolicy", "Job"}
    assert checked >= whole


def containers(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for where, pod in pods(objects):
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            yield f"{where}: {container['name']}", pod, container


def test_nothing_is_root_or_may_become_it(objects: list[dict[str, Any]]) -> None:
    for where, pod in pods(objects):
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True, where
        assert security["runAsUser"] == int(re.findall(r"^USER ([1-9]\d*)", DOCKERFILE, re.MULTILINE)[0]), where
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, where
        assert pod["automountServiceAccountToken"] is False, where
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), where
        assert all("hostPath" not in volume for volume in pod["volumes"]), where
    for where, _, container in containers(objects):
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True, where
        assert security["allowPrivilegeEscalation"] is False, where
        assert security["capabilities"] == {"drop": ["ALL"]}, where


def test_the_load_test_names_no_more_tenants_than_a_front_takes_of_one_address(objects: list[dict[str, Any]]) -> None:
    (job,) = [each for each in objects if each["kind"] == "Job" and each["metadata"]["name"].endswith("-loadtest")]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    given = command_line().parse_args(container["args"])
    assert given.url.endswith(":8011")
    assert given.repeat


def test_everything_is_bounded(objects: list[dict[str, Any]]) -> None:
    for where, pod, container in containers(objects):
        limits, requests = container["resources"]["limits"], container["resources"]["requests"]
        assert {"cpu", "memory"} <= limits.keys() & requests.keys(), where
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        memory = 0
        for volume in pod["volumes"]:
            if volume["name"] in mounted and volume.get("emptyDir", {}).get("medium") == "Memory":
                memory += kib(volume["emptyDir"]["sizeLimit"])
        assert 2 * memory <= kib(limits["memory"]), f"{where}: what is in memory counts"
        assert re.search(r":[\w.-]+$", container["image"]), where


def test_what_must_be_written_to_is_where_a_server_writes(objects: list[dict[str, Any]]) -> None:
    for where, pod, container in containers(objects):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        places = {mount["mountPath"]: volumes.get(mount["name"]) for mount in container["volumeMounts"]}
        if "startupProbe" in container:
            for place in ("/tmp", "/dev/shm"):
                assert places[place]["emptyDir"]["medium"] == "Memory", f"{where}: {place}"  # type: ignore[index]
            environment = {each["name"]: each.get("value", "") for each in container["env"]}
            assert environment["COVEY_KEPT"].startswith("/var/lib/covey/"), "a volume's own folder is not its user's"
            assert "/var/lib/covey" in places
        claims = {mount["name"] for mount in container["volumeMounts"]} - volumes.keys()
        assert claims <= {"state"}, f"{where}: mounts {claims} without volumes"


def test_servers_are_asked_what_the_image_asks(objects: list[dict[str, Any]]) -> None:
    found = re.search(
        r"HEALTHCHECK --interval=(\d+)s --timeout=(\d+)s --start-period=(\d+)s --retries=(\d+)", DOCKERFILE
    )
    assert found
    interval, timeout, start, retries = map(int, found.groups())
    asked = 0
    for where, _, container in containers(objects):
        if container["name"] in ("private", "loadtest"):
            continue
        asked += 1
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[name]["exec"]["command"] == ["/opt/covey/healthcheck"], where
            assert container[name]["timeoutSeconds"] == timeout, where
        assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] == start
        assert container["readinessProbe"]["periodSeconds"] == interval
        assert container["readinessProbe"]["failureThreshold"] == retries
        environment = {each["name"] for each in container["env"]}
        assert ("COVEY_HEALTH_MODEL" in environment) == ("drafters" in where), where
    assert asked >= 2


@pytest.mark.parametrize("drain", [{}, {"drain": {"seconds": 300, "preStopSeconds": 20}}])
def test_a_pod_has_time_to_drain(drain: dict[str, Any]) -> None:
    objects = render(merged(EVERYTHING, drain), "values-star.yaml")
    servers = 0
    for where, pod in pods(objects):
        [container] = pod["containers"]
        if "lifecycle" not in container:
            continue
        servers += 1
        word, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
        assert word == "sleep", where
        environment = {each["name"]: each.get("value", "") for each in container["env"]}
        needed = int(seconds) + int(environment["COVEY_DRAIN_SECONDS"]) + LEAVE_SECONDS
        assert pod["terminationGracePeriodSeconds"] > needed, where
    assert servers == 3


def test_secrets_are_named_and_never_there(objects: list[dict[str, Any]]) -> None:
    assert all(each["kind"] != "Secret" for each in objects)
    for where, pod, container in containers(objects):
        for each in container.get("env", ()):
            assert not re.search("SECRET|TOKEN|PASSWORD", each["name"]) or each["name"].endswith("_FILE"), where
        for volume in pod["volumes"]:
            if volume["name"] == "admin":
                assert volume["secret"]["secretName"] == "covey-admin"


def test_triton_s_own_ports_are_for_a_target_s_pod_alone(objects: list[dict[str, Any]]) -> None:
    for where, _, container in containers(objects):
        if container["name"] in ("covey", "kserve-container"):
            ports = {port["containerPort"] for port in container["ports"]}
            if "drafters" in where:
                assert ports == {8010, 8011, 8001}
            else:
                assert ports == {8010, 8011}
                assert container["args"] == ["--host", "127.0.0.1"]


def test_services_policies_and_budgets_are_of_pods_that_there_are(objects: list[dict[str, Any]]) -> None:
    made = [each["spec"]["template"] for each in objects if each["kind"] in ("StatefulSet", "Job")]
    labels = [template["metadata"]["labels"] for template in made]
    for each in objects:
        spec = each.get("spec", {})
        selector = {
            "Service": lambda spec: spec["selector"],
            "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
            "InferencePool": lambda spec: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
        }.get(each["kind"])
        if selector is None:
            continue
        wanted = selector(spec)
        found = [template for template, of in zip(made, labels) if wanted.items() <= of.items()]
        assert len(found) == 1, each["metadata"]["name"]
        if each["kind"] == "Service":
            ports = {port["name"] for port in found[0]["spec"]["containers"][0].get("ports", ())}
            assert {port["targetPort"] for port in spec["ports"]} <= ports, each["metadata"]["name"]
    for each in objects:
        if each["kind"] == "StatefulSet":
            assert of_kind(objects, "Service", each["spec"]["serviceName"])["spec"]["clusterIP"] == "None"
    scaled = of_kind(objects, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert "replicas" not in of_kind(objects, scaled["kind"], scaled["name"])["spec"], "the autoscaler says how many"


def test_the_drafters_port_is_open_to_targets_alone() -> None:
    objects = render({}, "values-star.yaml")
    [rule] = of_kind(objects, "NetworkPolicy", "covey-drafters")["spec"]["ingress"]
    assert rule["ports"] == [{"port": "drafts"}]
    targets = of_kind(objects, "StatefulSet", "covey")["spec"]["template"]["metadata"]["labels"]
    assert rule["from"][0]["podSelector"]["matchLabels"].items() <= targets.items()
    assert {"port": "drafts"} in [
        port for each in of_kind(objects, "NetworkPolicy", "covey")["spec"]["egress"] for port in each["ports"]
    ]


def test_profiles_that_are_named_exist_and_those_that_are_given_can_be_read(tmp_path: Path) -> None:
    for files in SETS.values():
        objects = render({"drafters": {"replicas": 2}}, *files)
        given = [each for each in objects if each["kind"] == "ConfigMap"]
        texts = {name: text for each in given for name, text in each["data"].items()}
        for _, pod in pods(objects):
            [named] = [each["value"] for each in pod["containers"][0]["env"] if each["name"] == "COVEY_PROFILE"]
            path = tmp_path / Path(named).name
            if path.name in texts:
                assert named.startswith("/run/profiles/")
                path.write_text(texts[path.name])
                servers = profile.load(str(path)).star.servers
                assert [server.partition("=")[2] for server in servers] == [
                    f"covey-drafters-{index}.covey-drafters:8001/draft_general" for index in range(2)
                ]
            elif named:  # else the launcher chooses
                assert profile.load(named).models


def test_private_files_become_private(tmp_path: Path) -> None:
    """The init container's own command, on files as a volume of secrets has them."""
    [init] = of_kind(render({}, "values-star.yaml"), "StatefulSet", "covey")["spec"]["template"]["spec"][
        "initContainers"
    ]
    given = tmp_path / "run" / "given" / "0"
    (given / "..data").mkdir(parents=True)
    (given / "..data" / "covey-1").write_text("0123456789abcdef")
    (given / "..data" / "covey-1").chmod(0o440)
    (given / "covey-1").symlink_to("..data/covey-1")
    (tmp_path / "run" / "covey").mkdir()
    words = [word.replace("$(POD_NAME)", "covey-1").replace("/run/", f"{tmp_path}/run/") for word in init["args"]]
    for _ in range(2):  # a pod's container may be started again
        subprocess.run([*init["command"], *words], check=True, timeout=20)
    assert private_text(tmp_path / "run" / "covey" / "secret") == "0123456789abcdef"
    missing = [word.replace("covey-1", "covey-9") for word in words]
    assert subprocess.run([*init["command"], *missing], check=False, capture_output=True, timeout=20).returncode


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"admin": {"secretName": ""}}, "admin.secretName: name a Secret"),
        ({"gateway": {"enabled": True}}, "gateway.picker.name"),
        ({"autoscaling": {"enabled": True, "metrics": None}}, "autoscaling.metrics"),
    ],
)
def test_what_cannot_work_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmError, match=said):
        render(wrong)


def leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def test_no_value_is_ignored() -> None:
    on = merged(EVERYTHING, {"drafters": {"replicas": 1, "state": "2Gi"}})
    whole = merged(values("values.yaml"), on)
    before = render(on)
    other: dict[type, Any] = {str: "other", int: 77, bool: False, dict: {"other": "other"}, list: [{"key": "other"}]}
    for path, value in leaves(whole):
        changed: Any = other[type(value)]
        if path[-1] == "private":
            changed = [{"secretName": "other", "key": "other", "file": "other"}]
        if path[-1] == "replicas" and path[0] == "targets":
            continue  # the autoscaler's, here
        if path[-1] in ("args", "imagePullSecrets"):
            changed = ["other"]
        for key in reversed(path):
            changed = {key: changed}
        assert render(merged(on, changed)) != before, ".".join(path)
    assert render({"targets": {"replicas": 7}}) != render({})

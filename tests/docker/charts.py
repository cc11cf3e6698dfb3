"""The chart, rendered as Helm renders it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import covey

helm = pytest.importorskip("helm_python", reason="helm-python-sdk is for x86-64")

CHART = Path(covey.__file__).parents[2] / "docker" / "helm"
EVERYTHING: dict[str, Any] = {
    "autoscaling": {"enabled": True},
    "gateway": {"enabled": True, "picker": {"name": "picker"}, "objectives": {"chat": 10}},
    "kserve": {"enabled": True, "storageUri": "pvc://models/target"},
    "loadtest": {"enabled": True},
}
Values = Mapping[str, Any]


def merged(base: dict[str, Any], more: Values) -> dict[str, Any]:
    """As Helm does it: maps are joined, all else is replaced."""
    found = copy.deepcopy(base)
    for key, value in more.items():
        here = found.get(key)
        found[key] = merged(here, value) if isinstance(here, dict) and isinstance(value, dict) else value
    return found


def values(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / name).read_text(encoding="utf-8"))
    return found


def render(given: Values | None = None, *files: str) -> list[dict[str, Any]]:
    """The objects, with these values behind those files."""
    chosen: dict[str, Any] = {}
    for file in files:
        chosen = merged(chosen, values(file))
    with helm.Chart.load(str(CHART)) as chart:
        texts = chart.render(merged(chosen, given or {}), name="covey", namespace="default")
    manifests = (text for path, text in texts.items() if path.endswith(".yaml"))
    return [found for text in manifests for found in yaml.load_all(text, yaml.CSafeLoader) if found]


def of_kind(objects: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    [found] = [each for each in objects if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    return found


def pods(objects: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod that the objects make, by what makes it. KServe puts its own together from two of them."""
    for each in objects:
        where = f"{each['kind']} {each['metadata']['name']}"
        if each["kind"] in ("StatefulSet", "Job"):
            yield where, each["spec"]["template"]["spec"]
        if each["kind"] == "ServingRuntime":
            predictor = of_kind(objects, "InferenceService")["spec"]["predictor"]
            yield where, predictor | {name: each["spec"][name] for name in ("containers", "volumes")}

"""The bench `gpu` without a GPU: every part in plain PyTorch, what it refuses, and engines that share a pair."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from covey.contracts.types import JsonDict
from covey_training.aligned import Pair
from loadtest.bench import gpu
from loadtest.bench.__main__ import main
from loadtest.bench.gpu import rig as rigs
from loadtest.bench.gpu.rig import Rig
from loadtest.bench.session import Session, Wanted

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="module")
def one_pair() -> Iterator[None]:
    """Tests that want the same pair share it: to build one takes longer than most of what is done with it."""
    build, built = rigs.build, dict[tuple[object, ...], Pair]()

    def once(config: Any, *wanted: Any) -> Pair:
        key = (config.to_json_string(), *wanted)
        if key not in built:
            built[key] = build(config, *wanted)
        return built[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rigs, "build", once)
        yield


def test_without_a_gpu_every_part_runs_and_what_needs_one_is_null(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    assert main(["gpu", "--device", "cpu", "--quick", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["failures"] == {}
    assert set(gpu.PARTS) <= found.keys()
    assert found["pair"]["agreement"] == pytest.approx(0.7, abs=0.05)
    assert found["ceilings"] == {"copy_bytes_per_s": None, "product_flops_per_s": None}
    (plain,) = found["plain"].values()
    assert set(plain.values()) == {None}
    rounds = [each for by_label in found["overhead"].values() for each in by_label.values()]
    assert {each["outside_ms"] for each in rounds} == {None}
    assert set(found["speculation"]["points"]) == {"1", "4"}
    for point in found["speculation"]["points"].values():
        assert set(point["tokens_per_second"]) == {"off", "fixed:2", "adaptive"}
        assert point["adaptive_over_best_static"] > 0
        assert point["best_fixed_over_off"] > 0
        assert point["depth"]["fixed:2"] > 1.0


def test_a_part_that_fails_is_reported_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_rig: Rig, found: JsonDict) -> None:
        found["half"] = 1
        raise RuntimeError("no such kernel")

    parts = {**gpu.PARTS, "plain": broken}
    monkeypatch.setattr(gpu, "PARTS", parts)
    monkeypatch.setattr(gpu.gpu_shown, "SHOWN", {"ceilings": gpu.gpu_shown.SHOWN["ceilings"]})
    out = tmp_path / "gpu.json"
    assert main(["gpu", "--device", "cpu", "--quick", "--part", "ceilings", "--part", "plain", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["failures"]["plain"]["error"] == "RuntimeError: no such kernel"
    assert found["plain"] == {"half": 1}
    assert found["ceilings"] == {"copy_bytes_per_s": None, "product_flops_per_s": None}
    assert found["speculation"] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        pytest.param(
            [], "no GPU was found; --device cpu", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="GPU")
        ),
        (["--device", "cpu", "--part", "nonsense"], "part: got 'nonsense', allowed: ceilings"),
        (["--device", "cpu", "--size", "9t"], "size: got '9t', allowed: tiny"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_line(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpu.json"
    assert main(["gpu", *options, "--json", str(out)]) == 1
    assert said in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


def test_engines_that_share_a_pair_in_turns_say_the_same_with_drafts_and_without(tmp_path: Path) -> None:
    session = Session("gpu", Wanted(tmp_path / "gpu.json", quick=True, device="cpu"), Console(quiet=True))
    rig = Rig(session)
    engines = [rig.engine(policy) for policy in ("off", "fixed:3", "adaptive")]
    for seed in (1, 2):
        asks = rig.asks(6, prompt=(8, 30), output=(10, 30), seed=seed)
        runs = {engine.name: engine.run(asks, 3, tenant=str(seed)) for engine in engines}
        expected = [answer.tokens for answer in runs["off"].answers]
        assert [len(tokens) for tokens in expected] == [ask.max_tokens for ask in asks]
        for run in runs.values():
            assert [answer.tokens for answer in run.answers] == expected
        assert sum(answer.drafted for answer in runs["off"].answers) == 0
        assert sum(answer.accepted for answer in runs["fixed:3"].answers) > 0
    for engine in engines:
        engine.close()
    rig.loaded().runner.check()


def test_an_engine_that_dies_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(Session("gpu", Wanted(tmp_path / "gpu.json", quick=True, device="cpu"), Console(quiet=True)))
    engine = rig.engine("off")

    def fail(_work: object) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(rig.loaded().runner, "step", fail)
    with pytest.raises(Exception, match="off: its engine has died: RuntimeError\\('the device is gone'\\)"):
        engine.run(rig.asks(1, prompt=(8, 8), output=(4, 4), seed=1), 1)
    engine.close()

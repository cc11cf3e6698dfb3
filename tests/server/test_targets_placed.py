"""The repository that is made for several targets; with one, none is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from covey.care.supervisor import roles
from covey.contracts import profile
from covey.contracts.errors import SettingError
from covey.server import Server, installation
from covey.server.errors import StartError
from covey.server.options import Options
from covey.server.targets import placed

MAIN = """
models = ["covey", "covey_unary", "draft_chat"]
targets = ["large=large.toml", "small=small.toml"]
"""
OWN = """
models = ["draft_chat"]
[speculation]
drafters = ["draft_chat"]
"""


@pytest.fixture
def options(tmp_path: Path) -> Options:
    for name, text in (("main", MAIN), ("large", OWN), ("small", OWN)):
        (tmp_path / f"{name}.toml").write_text(text)
    return Options(profile=str(tmp_path / "main.toml"), state=tmp_path / "state")


def test_one_target_needs_nothing(tmp_path: Path) -> None:
    options = Options(state=tmp_path / "state")
    assert placed(options) is options
    assert not (tmp_path / "state").exists()


def test_each_target_has_its_own_entries_and_profile(options: Options) -> None:
    found = placed(options)
    assert found.models is not None
    assert found.models[3:] == ("target_large", "target_small", "covey_large", "covey_small")
    repository = found.repository_folder()
    folder = Path(options.profile).parent
    text = {name: (repository / name / "config.pbtxt").read_text() for name in found.models}
    for name in ("large", "small"):
        for kind in ("target", "covey"):
            assert f'key: "profile" value {{ string_value: "{folder / name}.toml" }}' in text[f"{kind}_{name}"]
        assert f'key: "target" value {{ string_value: "target_{name}" }}' in text[f"covey_{name}"]
        assert (repository / f"target_{name}" / "1").is_dir()
    assert 'backend: "router"' in text["covey"]
    assert 'string_value: "large,small"' in text["covey"]
    assert 'name: "target"' in text["covey"], "the field"
    assert placed(options) == found, "the same again"
    backends = roles(repository, found.models)
    assert {name for name, backend in backends.items() if backend == "target"} == {"target_large", "target_small"}
    assert backends["covey"] == "router"
    assert backends["covey_large"] == backends["covey_small"] == "orchestrator"


@pytest.mark.parametrize(
    ("main", "own", "named"),
    [
        (MAIN.replace('"covey",', '"covey", "target",'), OWN, "no target"),
        (MAIN.replace('"covey",', ""), OWN, "are to have covey"),
        (MAIN.replace('"draft_chat"', '"draft_code"'), OWN, "wants draft_chat"),
        (MAIN.replace("small=", "large="), OWN, "two are named large"),
        (MAIN, OWN + '[memory]\npolicy = "thresholds"\n', "memory.policy"),
        (MAIN, 'targets = ["x=large.toml"]\n' + OWN, "several of its own"),
        (MAIN.replace("small=", "Small="), OWN, "NAME=PROFILE"),
    ],
)
def test_what_cannot_be_is_said(options: Options, main: str, own: str, named: str) -> None:
    folder = Path(options.profile).parent
    (folder / "main.toml").write_text(main)
    (folder / "small.toml").write_text(own)
    with pytest.raises((StartError, SettingError), match=named):
        placed(options)


def test_a_target_s_folder_is_said_in_its_profile(options: Options, tmp_path: Path) -> None:
    with pytest.raises(StartError, match="--model is for one target"):
        placed(replace(options, model=str(tmp_path)))


def test_a_model_s_own_profile_goes_before_the_server_s(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(profile.PROFILE_VARIABLE, options.profile)
    own = str(Path(options.profile).with_name("small.toml"))
    assert profile.of_model({"profile": {"string_value": own}}).name == "small"
    assert profile.of_model({}).name == "main"


def test_a_server_that_is_started_again_is_as_it_was(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(_folder: Path | None) -> None:
        raise StartError("no further in this test")

    monkeypatch.setattr(installation, "find", nowhere)
    server = Server(options)
    for _ in range(2):
        with pytest.raises(StartError, match=r"^no further in this test$"):
            server.start()
    assert server.options == placed(options)

from __future__ import annotations

from pathlib import Path

import pytest

from covey.contracts import profile
from covey.contracts.errors import SettingError

SHIPPED = sorted(profile.profiles_folder().glob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_profiles_load(path: Path) -> None:
    loaded = profile.load(path.stem)
    assert loaded.name == path.stem
    assert loaded.description
    assert "covey" in loaded.models or loaded.star.callers, "it has a target, or drafts for other servers'"


def test_the_default_profile_loads_no_drafter_that_only_requests_which_name_it_ask() -> None:
    """Policy `fixed` of drafters has the first one draft for all others."""
    loaded = profile.load("smollm2")
    assert loaded.speculation.drafter_policy == "fixed"
    assert [name for name in loaded.models if name.startswith("draft_")] == list(loaded.speculation.drafters)
    assert len(loaded.speculation.drafters) == 1


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_is_read_is_written_as_it_was(path: Path, tmp_path: Path) -> None:
    tables, found = profile.read(path.stem)
    assert found == path
    copy = tmp_path / path.name
    copy.write_text(profile.written(tables))
    assert profile.read(str(copy))[0] == tables


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[target]\nblocksize = 4", "unknown key 'target.blocksize'; allowed here: kind, folder"),
        ("surprise = 1", "unknown key 'surprise'"),
        ('targets = ["small=small.toml"]', "targets: a server has one target: start a server with each"),
        ("[target]\nblock_size = 0", "target.block_size: got 0, allowed: 1 to 256"),
        ("[target]\nkv_memory_mb = -3", "target.kv_memory_mb: got -3, allowed: 0 to 4194304"),
        ("[target]\nblock_size = true", "target.block_size: got True, allowed: int"),
        ('[target]\ndtype = "int4"', "target.dtype: got 'int4', allowed: auto, bfloat16"),
        ("[target]\nthreads = 1.5", "target.threads: got 1.5, allowed: int"),
        ("target = 3", "target must be a table"),
        ("models = [1]", "models: got"),
        ('[speculation]\npolicy = "covey"', "k is from 1 to 32; covey is called adaptive now"),
        ('[speculation]\ndrafter_policy = "adaptive"', "no policy chooses for the whole batch any more: write fixed"),
        ('[speculation]\ndrafter_policy = "covey"', "write fixed, or one of MetaSD's bandits as ucb-be"),
        ('[speculation]\npolicy = "fixed:0"', "speculation.policy: got 'fixed:0'"),
        ('[speculation]\npolicy = "nightjar2"', "speculation.policy: got 'nightjar2'"),
        ('models = ["lookup"]\n[speculation]\ndrafters = ["lookup"]', "the name lookup is reserved"),
        ('[speculation]\ndrafters = ["nobody"]', "nobody must also be in models"),
        ('[speculation]\ndrafter_policy = "fixed:nobody"', "speculation.drafter_policy: got 'fixed:nobody', allowed"),
        ('[drafter]\nfolders = ["draft_mine:/m"]', "drafter.folders: draft_mine must also be in speculation.drafters"),
        ('[drafter]\nfolders = ["/m"]', "drafter.folders: got '/m', allowed: NAME:FOLDER"),
        ('[target]\nkind = "emulated"\n[emulated]\ncosts = "none"', "emulated.costs: cost table 'none' not found"),
        ('[speculation]\ncosts = "none"', "speculation.costs: cost table 'none' not found"),
        ('[emulated]\nacceptance = ["draft_emulated:1.1"]', "emulated.acceptance: got 'draft_emulated:1.1'"),
        ('[speculation]\ntable = ["8:x"]', "speculation.table: got '8:x', allowed: for policy table: BATCH:DEPTH"),
        ('[speculation]\ntable = ["8:3"]', "speculation.table: the table must start with an entry for batch size 1"),
        ('[speculation]\ntable = ["0:2", "1:1"]', "speculation.table: got '0:2'"),
        ('[speculation]\ntable = ["1:2", "1:3"]', "speculation.table: got '1:3'"),
        ('[speculation]\ntable = ["1:7"]', "speculation.table: got '1:7', allowed: depths up to"),
        ('[speculation]\npolicy = "table"\nmax_depth = 2', "speculation.table: got '1:5'"),
        ('[front]\nproxies = ["nginx"]', "front.proxies: got 'nginx', allowed: addresses or networks"),
        ('[front]\nproxies = ["10.0.0.1/8"]', "front.proxies: 10.0.0.1/8 has host bits set; allowed: addresses"),
        ("[target\n", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(SettingError) as caught:
        profile.load(str(path))
    assert complaint in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_named_without_its_ending_is_hinted_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("")
    with pytest.raises(SettingError, match=r"to use your own file, name it in full: mine\.toml"):
        profile.load("mine")


def test_an_unknown_name_lists_the_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match=r"known profiles: .*demo-cpu"):
        profile.load("nothing-like-it")
    monkeypatch.setenv(profile.FOLDER_VARIABLE, "/some/model")
    target = profile.from_environment().target
    assert (target.folder, target.threads) == ("/some/model", 0), "the bundled model's one thread is for it alone"


@pytest.mark.parametrize("folder", ["", 'folder = "/of/the/profile"'])
def test_another_model_has_the_threads_that_its_profile_gives(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"[target]\nthreads = 3\n{folder}")
    monkeypatch.setenv(profile.PROFILE_VARIABLE, str(path))
    monkeypatch.setenv(profile.FOLDER_VARIABLE, "/some/model")
    target = profile.from_environment().target
    assert (target.folder, target.threads) == ("/some/model", 3)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("max_depth = 2", "max_depth", 2),  # it may leave the table alone
        ("draft_deadline_ms = 250", "draft_deadline_ms", 250.0),
        ("", "costs", profile.AUTO),  # curves are measured
        ('costs = ""', "costs", ""),
        ('costs = "emulated-7b-24g"', "costs", "emulated-7b-24g"),
    ],
)
def test_what_is_right_is_taken(tmp_path: Path, text: str, name: str, value: object) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"[speculation]\n{text}")
    assert getattr(profile.load(str(path)).speculation, name) == value


def test_an_operator_asks_for_another_type_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert profile.from_environment().target.dtype == profile.AUTO
    monkeypatch.setenv(profile.DTYPE_VARIABLE, "bfloat16")
    assert profile.from_environment().target.dtype == "bfloat16"
    monkeypatch.setenv(profile.DTYPE_VARIABLE, "int4")
    with pytest.raises(SettingError, match=r"dtype: got 'int4', allowed: auto, bfloat16"):
        profile.from_environment()

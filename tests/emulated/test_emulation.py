"""From a profile to emulated devices: what is refused, and what the settings mean."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import covey
from covey.contracts import profile
from covey.contracts.errors import SettingError
from covey.contracts.profile import EmulatedSettings, Profile, TargetSettings
from covey.drafters import load_drafter
from covey.emulated import opening as emulation
from covey.target.opening import load_target
from loadtest.simulation.virtual import VirtualClock

FOLDER = Path(covey.__file__).parents[2] / "model_repository" / "target" / "1"
EMULATED = profile.load("emulated-7b")


def test_the_pool_has_as_many_blocks_as_its_memory_holds() -> None:
    settings = replace(EMULATED.target, kv_memory_mb=64, block_size=16)
    target = emulation.load_target(FOLDER, replace(EMULATED, target=settings), VirtualClock())
    info = target.info()
    assert info.total_blocks == (64 << 20) // (16 * EMULATED.emulated.kv_token_bytes)
    assert (info.model, info.device) == ("emulated emulated-7b-24g", "emulated")
    assert info.max_positions == EMULATED.emulated.max_positions
    fixed = replace(EMULATED, target=replace(settings, kv_blocks=7))
    assert emulation.load_target(FOLDER, fixed, VirtualClock()).info().total_blocks == 7


def test_target_and_drafter_speak_the_same_tokens() -> None:
    target = load_target(FOLDER, EMULATED, name="target")
    drafter = load_drafter("emulated", FOLDER, FOLDER, EMULATED, name="draft_emulated")
    assert drafter.info().vocab_size == target.info().vocab_size
    assert drafter.info().resident_bytes == EMULATED.emulated.drafter_mb << 20


def test_acceptance_is_by_drafter_and_tenant() -> None:
    listed = ("one:0.8,0.6", "one/de:co:0.9", "other:0.1")
    assert emulation.acceptance(listed, "one") == {"": (0.8, 0.6), "de:co": (0.9,)}
    with pytest.raises(SettingError, match=r"no entry for third: add third:0\.6"):
        emulation.acceptance(listed, "third")


def test_what_cannot_be_emulated_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"set target\.kind to emulated"):
        load_drafter("emulated", FOLDER, FOLDER, Profile("neural"), name="draft_emulated")
    with pytest.raises(SettingError, match="has no such drafter, only draft_emulated"):
        load_drafter("emulated", FOLDER, FOLDER, EMULATED, name="draft_other")
    small = TargetSettings(kind="emulated", kv_memory_mb=1)
    large = EmulatedSettings(kv_token_bytes=1 << 20)
    with pytest.raises(SettingError, match="cannot hold a block"):
        load_target(FOLDER, replace(EMULATED, target=small, emulated=large), name="target")
    shutil.copy(FOLDER / "config.json", tmp_path)
    with pytest.raises(SettingError, match="needs a tokenizer"):
        load_target(tmp_path, EMULATED, name="target")

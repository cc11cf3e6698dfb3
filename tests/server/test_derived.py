"""A folder that was made of a model is made once, whole, and of the model as it is now."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from covey.server.derived import derive
from covey.server.errors import StartError

PAGES = 4 << 12  # more of a file than identity.py samples


class Maker:
    """Makes folders of one file and counts them."""

    def __init__(self, at: Path) -> None:
        self.state, self.model, self.made = at / "state", at / "a model", 0
        self.weights = self.model / "model.safetensors"
        self.model.mkdir()
        self.weights.write_bytes(bytes(PAGES))

    def build(self, building: Path) -> None:
        self.made += 1
        (building / "weights").write_bytes(self.weights.read_bytes())

    def __call__(self) -> Path:
        return derive(self.state, "plain", self.model, [self.weights], self.build)


@pytest.fixture
def maker(tmp_path: Path) -> Maker:
    return Maker(tmp_path)


def test_it_follows_a_change_that_no_sample_sees(maker: Maker) -> None:
    first = maker()
    assert maker() == first
    assert maker.made == 1
    os.utime(maker.weights, ns=(0, 0))
    before = maker()
    maker.weights.write_bytes(bytes(PAGES - 1) + b"\1")
    assert maker() != before
    assert (maker() / "weights").read_bytes() == maker.weights.read_bytes()


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, 9), lambda path: path.write_bytes(b"")])
def test_what_was_damaged_is_made_again(maker: Maker, damage: object) -> None:
    folder = maker()
    assert callable(damage)
    damage(folder / "weights")
    assert maker() == folder
    assert (folder / "weights").read_bytes() == bytes(PAGES)
    assert maker.made == 2


def test_what_a_killed_launcher_left_is_removed_and_a_running_one_s_is_not(maker: Maker) -> None:
    left = maker.state / "plain" / ".building-left"
    left.mkdir(parents=True)
    maker.state.joinpath("plain").chmod(0o700)
    inside, go = threading.Event(), threading.Event()

    def slow(building: Path) -> None:
        inside.set()
        assert go.wait(10)
        maker.build(building)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(derive, maker.state, "plain", maker.model, [maker.weights], slow)
        assert inside.wait(10)
        assert not left.exists()
        second = pool.submit(maker)
        go.set()
        assert first.result(10) == second.result(10)
    assert maker.made == 1
    assert list((maker.state / "plain").iterdir()) == [first.result()]


def test_a_full_disk_is_one_line_and_leaves_nothing(maker: Maker) -> None:
    def full(building: Path) -> None:
        (building / "weights").write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(StartError, match=r"No space left on device: .* where there is room") as caught:
        derive(maker.state, "plain", maker.model, [maker.weights], full)
    assert str(caught.value).startswith(f"{maker.model}: ")
    assert not list((maker.state / "plain").iterdir())
    maker.state = maker.weights / "no folder"
    with pytest.raises(StartError, match="let this user read it, and write"):
        maker()


def test_what_cannot_be_read_is_one_line(maker: Maker) -> None:
    maker.weights.unlink()
    maker.weights.mkdir()
    with pytest.raises(StartError, match=r"Is a directory: .*: let this user read it"):
        maker()

"""How much memory there is to take: the machine's, or what the narrowest control group around a process leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.process import footprint
from covey.process.footprint import LOOK_SECONDS, Spare, available
from tests.fakes import ManualClock

NEW = "memory.max", "memory.current", "inactive_file"
OLD = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
NO_LIMIT = 9223372036854771712  # as version 1 writes it


def machine(root: Path, groups: str, kilobytes: int = 8) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemFree: 1 kB\nMemAvailable:   {kilobytes} kB\n")
    (root / "proc/self/cgroup").write_text(groups)
    return root


def group(root: Path, path: str, names: tuple[str, str, str], limit: object, used: int, cached: int = 0) -> None:
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in zip(names, (limit, used)):
        (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(f"active_file 70\n{names[2]} {cached}\n")


def test_without_a_limit_it_is_what_the_machine_has(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n")
    assert available(root) == 8192
    group(root, "", NEW, "max", 10**9)
    assert available(root) == 8192
    (root / "proc/self/cgroup").unlink()
    assert available(root) == 8192


def test_a_container_has_what_its_limit_leaves_and_cached_files_are_given_up(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\n")
    group(root, "", NEW, 3000, 1000, 600)
    assert available(root) == 2600
    group(root, "", NEW, 3000, 3900, 600)
    assert available(root) == 0, "it was lowered since"
    group(root, "", NEW, 10**9, 1000)
    assert available(root) == 8192, "more than the machine has"


@pytest.mark.parametrize("narrowest", ["system.slice", "system.slice/covey", "system.slice/covey/inner"])
def test_of_nested_groups_the_narrowest_counts(tmp_path: Path, narrowest: str) -> None:
    root = machine(tmp_path, "0::/system.slice/covey/inner\n")
    for path in ("system.slice", "system.slice/covey", "system.slice/covey/inner"):
        group(root, path, NEW, 4000 if path == narrowest else "max", 1500)
    group(root, "user.slice", NEW, 10, 1)
    assert available(root) == 2500


def test_groups_of_version_1_count_too(tmp_path: Path) -> None:
    root = machine(tmp_path, "6:cpu,cpuacct:/other\n4:memory:/docker/covey\n1:name=systemd:/\n0::/\n")
    group(root, "memory", OLD, NO_LIMIT, 10**9)
    assert available(root) == 8192
    group(root, "memory/other", OLD, 10, 1)
    group(root, "memory/docker/covey", OLD, 5000, 2000, 300)
    assert available(root) == 3300
    group(root, "memory/docker", OLD, 4000, 2000)
    assert available(root) == 2000


def test_a_container_of_version_1_sees_its_group_as_the_root(tmp_path: Path) -> None:
    root = machine(tmp_path, "4:memory:/docker/0123456789ab\n")
    group(root, "memory", OLD, 5000, 2000)
    assert available(root) == 3000


def test_rounds_look_at_memory_only_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, left, looks = ManualClock(), 1001, list[int]()

    def look() -> int:
        looks.append(left)
        return left

    monkeypatch.setattr(footprint, "available", look)
    spare = Spare(1000, clock.now)
    assert not looks
    assert all(spare() for _ in range(100))
    left = 1000
    assert spare()
    assert len(looks) == 1
    clock.sleep(LOOK_SECONDS)
    assert not any(spare() for _ in range(100))
    assert len(looks) == 2

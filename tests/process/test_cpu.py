"""A lesser CPU than this one is taken for true everywhere, and threads follow what a process may use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from covey.contracts.errors import SettingError
from covey.process import cpu

AVX512 = "avx avx2 fma f16c bmi2 avx512f avx512bw avx512cd avx512dq avx512vl"
FLAGS = {
    "Haswell": "avx avx2 fma f16c bmi2",
    "Skylake": AVX512,
    "Cascade Lake": f"{AVX512} avx512_vnni",
    "Zen 4": f"{AVX512} avx512_vnni avx512_bf16",
    "Sapphire Rapids": f"{AVX512} avx512_vnni avx512_bf16 amx_bf16 amx_tile",
    "Nehalem": "sse4_2",
}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cpu.VARIABLE, raising=False)
    monkeypatch.setattr(cpu, "_own", cpu._own.__wrapped__)
    monkeypatch.setattr(cpu, "_model", cpu._model.__wrapped__)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Cascade Lake, as Linux describes it."""
    name = "Cascade Lake"
    (tmp_path / "cpuinfo").write_text(f"model name\t: {name}\nflags\t\t: fpu {FLAGS[name]} x2apic\n")
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")


@pytest.mark.parametrize(
    ("name", "level", "multiplies"),
    [
        ("Nehalem", "no AVX2", False),
        ("Haswell", "AVX2", False),
        ("Skylake", "AVX-512", False),
        ("Cascade Lake", "AVX-512 VNNI", False),
        ("Zen 4", "AVX-512 BF16", True),
        ("Sapphire Rapids", "AMX", True),
    ],
)
def test_a_cpu_is_known_by_what_linux_says_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, level: str, multiplies: bool
) -> None:
    (tmp_path / "cpuinfo").write_text(f"model name\t: {name}\nflags\t\t: fpu {FLAGS[name]} x2apic\n")
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert cpu.label() == f"{name} ({level}; 1 core)"
    assert cpu.multiplies_bfloat16() is multiplies


def test_arm_has_instructions_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text("Features\t: fp asimd bf16\n")
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")
    assert cpu.multiplies_bfloat16()


@pytest.mark.usefixtures("machine")
def test_a_lesser_cpu_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, own = {cpu.key()}, cpu.features()
    for name in ("haswell", "skylake-avx512"):
        monkeypatch.setenv(cpu.VARIABLE, name)
        cpu.check()
        assert cpu.features() < own
        assert name in cpu.label()
        assert name in cpu.described(), "what is kept of numerics and timings is another's"
        keys.add(cpu.key())
    assert len(keys) == 3


@pytest.mark.usefixtures("machine")
def test_libraries_are_not_told_of_a_greater_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would use its instructions, and be killed by them."""
    monkeypatch.setattr(os, "environ", {})
    for name in ("znver4", "pentium", ""):
        os.environ[cpu.VARIABLE] = name
        cpu.take_lesser()
        assert "OPENBLAS_CORETYPE" not in os.environ
    os.environ[cpu.VARIABLE] = "haswell"
    cpu.take_lesser()
    assert os.environ["OPENBLAS_CORETYPE"] == "Haswell"


@pytest.mark.usefixtures("machine")
def test_a_greater_or_unknown_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cpu.VARIABLE, "znver4")
    with pytest.raises(
        SettingError, match=r"COVEY_CPU: got 'znver4', but this CPU lacks avx512bf16; allowed here: neh"
    ):
        cpu.check()
    monkeypatch.setenv(cpu.VARIABLE, "pentium")
    with pytest.raises(SettingError, match=r"COVEY_CPU: got 'pentium', allowed: nehalem, haswell, znver2, "):
        cpu.check()


def test_libraries_are_kept_to_it() -> None:
    said = "import os, covey, torch; print(torch.backends.cpu.get_cpu_capability(), os.environ['ONEDNN_MAX_CPU_ISA'])"
    libraries = {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", cpu.VARIABLE}
    environment = {name: value for name, value in os.environ.items() if name not in libraries}
    for name, capability in {"nehalem": "DEFAULT SSE41", "haswell": "AVX2 AVX2"}.items():
        done = subprocess.run(
            [sys.executable, "-c", said],
            env=environment | {cpu.VARIABLE: name},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stdout.split("\n")[0] == capability


@pytest.mark.parametrize(
    ("allowed", "threads"), [("max", 8), ("50000", 1), ("150000", 1), ("200000", 2), ("900000", 8)]
)
def test_threads_follow_the_quota_of_a_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: str, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "own").write_text("0::/outer/inner\n")
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    (tmp_path / "outer" / "inner" / "cpu.max").write_text("max 100000\n")
    (tmp_path / "outer" / "cpu.max").write_text(f"{allowed} 100000\n")
    quota = cpu._quota
    monkeypatch.setattr(cpu, "_quota", lambda: quota(tmp_path, tmp_path / "own"))
    assert cpu.cores() == threads


def test_threads_follow_the_quota_of_an_older_control_group(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("6:cpuset:/other\n5:memory:/other\n4:cpu,cpuacct:/box/inner\n")
    (tmp_path / "cpu" / "box" / "inner").mkdir(parents=True)
    (tmp_path / "cpu" / "other").mkdir()
    for name in ("quota", "period"):  # of what other controllers call the group
        (tmp_path / "cpu" / "other" / f"cpu.cfs_{name}_us").write_text("100000\n")
    (tmp_path / "cpu" / "box" / "cpu.cfs_quota_us").write_text("300000\n")
    (tmp_path / "cpu" / "box" / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu._quota(tmp_path, tmp_path / "own") == 3
    (tmp_path / "cpu" / "box" / "cpu.cfs_quota_us").write_text("-1\n")
    assert cpu._quota(tmp_path, tmp_path / "own") == float("inf")
    assert cpu._quota(tmp_path, tmp_path / "none") == float("inf"), "no Linux"

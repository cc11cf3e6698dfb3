"""The CPU that code is compiled for, and the share of it that this process may use.

`COVEY_CPU=haswell` names an older CPU than this one. Compiled code, PyTorch, oneDNN and OpenBLAS then use only its
instructions, so one machine can test the code of others.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from covey.contracts.errors import SettingError

GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
VARIABLE = "COVEY_CPU"
CPUINFO = Path("/proc/cpuinfo")
_V3 = frozenset({"avx2", "bmi2", "f16c", "fma"})
_AVX512 = _V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
_VNNI = _AVX512 | {"avx512vnni"}
KNOWN: dict[str, frozenset[str]] = {  # LLVM's names of CPUs and features
    "nehalem": frozenset(),
    "haswell": _V3,
    "znver2": _V3,
    "skylake-avx512": _AVX512,
    "cascadelake": _VNNI,
    "znver4": _VNNI | {"avx512bf16"},
    "sapphirerapids": _VNNI | {"avx512bf16", "amx-bf16"},
}
_ASKED = frozenset().union(*KNOWN.values(), {"bf16"})  # bf16 is ARM's
_LEVELS = {  # best first: a feature, its usual name, and the settings that limit oneDNN and PyTorch to it
    "amx-bf16": ("AMX", "AVX512_CORE_AMX", "avx512"),
    "avx512bf16": ("AVX-512 BF16", "AVX512_CORE_BF16", "avx512"),
    "avx512vnni": ("AVX-512 VNNI", "AVX512_CORE_VNNI", "avx512"),
    "avx512f": ("AVX-512", "AVX512_CORE", "avx512"),
    "avx2": ("AVX2", "AVX2", "avx2"),
    "": ("no AVX2", "SSE41", "default"),
}
_OPENBLAS = {"avx512bf16": "Cooperlake", "avx512f": "SkylakeX", "avx2": "Haswell", "": "Nehalem"}


def around(controller: str, groups: Path = GROUPS, own: Path = OWN) -> list[Path]:
    """Return the folders of this process's control groups that may limit what `controller` counts, from the inside out.
    Version 1 has a tree of groups for each controller, version 2 one for all."""
    try:
        lines = own.read_text().splitlines()
    except OSError:  # no Linux
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controller if controllers else groups
        folder = root / path.lstrip("/")
        found += [each for each in (folder, *folder.parents) if each == root or root in each.parents]
    return found


def chosen() -> str:
    """Return the CPU that COVEY_CPU names, or "". Raises SettingError if it is not known."""
    name = os.environ.get(VARIABLE, "")
    if name and name not in KNOWN:
        raise SettingError(f"{VARIABLE}: got {name!r}, allowed: {', '.join(KNOWN)}")
    return name


def features() -> frozenset[str]:
    """Return the instruction sets that code may use, by LLVM's names, without those that no code asks for."""
    name = chosen()
    return KNOWN[name] if name else _own()


def multiplies_bfloat16() -> bool:
    """Return whether the CPU has instructions for products of bfloat16."""
    return bool({"avx512bf16", "amx-bf16", "bf16"} & features())


def multiplies_bytes() -> bool:
    """Return whether the CPU has instructions for products of bytes."""
    return bool({"avx512vnni", "avx512bw" if "avx512f" in features() else "avx2"} & features())


def check() -> None:
    """Raise SettingError if COVEY_CPU names a CPU with instructions that this one lacks."""
    missing = sorted(features() - _own())
    if missing:
        possible = [name for name, needed in KNOWN.items() if needed <= _own()]
        raise SettingError(
            f"{VARIABLE}: got {chosen()!r}, but this CPU lacks {', '.join(missing)}; allowed here: "
            f"{', '.join(possible)}"
        )


def label() -> str:
    """Return a label of the CPU that code is compiled for: its name, best instructions, and the cores to use."""
    level = _LEVELS[_best(_LEVELS)][0]
    threads = f"{cores()} core{'s' if cores() > 1 else ''}"
    return f"{chosen()} ({level}; {VARIABLE}; {threads})" if chosen() else f"{_model()} ({level}; {threads})"


def key() -> str:
    """Return a digest under which compiled code for this CPU is kept."""
    lines = [chosen()] if chosen() else described()
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]


def described(cpuinfo: Path = CPUINFO) -> list[str]:
    """Return the lines of /proc/cpuinfo that identify the kind of CPU."""
    try:
        lines = re.findall(r"^(?:model name|flags|Features)\s*: (.*)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:  # no Linux
        lines = [platform.processor()]
    return sorted({*lines, *filter(None, [chosen()])})


def take_lesser() -> None:
    """Limit the libraries of this process and its children to the CPU that COVEY_CPU names. Call it before they load,
    because they read these variables then. A variable that is already set stays."""
    if not KNOWN.get(os.environ.get(VARIABLE, ""), _ASKED) <= _own():  # none is named, or one that `check` refuses
        return
    _, onednn, torch = _LEVELS[_best(_LEVELS)]
    openblas = _OPENBLAS[_best(_OPENBLAS)]
    values = {"ONEDNN_MAX_CPU_ISA": onednn, "ATEN_CPU_CAPABILITY": torch, "OPENBLAS_CORETYPE": openblas}
    for variable, value in values.items():
        os.environ.setdefault(variable, value)


def cores() -> int:
    """Return how many threads this process can run at once: one for each CPU, or fewer if its control group has a
    quota. A quota is rounded down, because a pass would wait for a thread that the quota stops."""
    return max(1, int(min(len(os.sched_getaffinity(0)), _quota())))


def _quota(groups: Path = GROUPS, own: Path = OWN) -> float:
    """Return the least number of CPUs that a control group of this process allows, infinite without a limit."""
    return min(map(_allowed, around("cpu", groups, own)), default=math.inf)


def _allowed(folder: Path) -> float:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return math.inf if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf


@cache
def _own() -> frozenset[str]:
    """Return those features of this machine's CPU that code asks for."""
    try:
        text = CPUINFO.read_text()
    except OSError:  # no Linux
        return frozenset()
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    words = set(flags[1].replace("avx512_", "avx512").replace("amx_", "amx-").split()) if flags else set()
    return _ASKED & words


@cache
def _model() -> str:
    found = re.search(r"^model name\s*: (.*)$", CPUINFO.read_text() if CPUINFO.exists() else "", re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _best(levels: Mapping[str, object]) -> str:
    return next(name for name in levels if not name or name in features())

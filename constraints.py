"""Writes constraints.txt: `make constraints`, with PYTHONS= where the three interpreters are not on PATH.

pip resolves, without installing anything, what `make setup` asks for, once with each interpreter; a package whose
version is not the same for all gets environment markers. Pins that are there already stay: delete a line to have its
package chosen anew, or all of them. What only torch's CUDA builds bring is left to them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
FILE = ROOT / "constraints.txt"
VERSIONS = ("3.10", "3.11", "3.12")
HEADER = """\
# Exact versions of everything that `pip install -e .[dev,loadtest]` brings, for Python 3.10 to 3.12, for `make setup`.
# Written by `make constraints` (constraints.py), which keeps what is below: to have a version chosen anew, delete it.
# torch has no local tag: pip's own index settings choose the CPU or the CUDA build.
"""
BY_HAND = {"triton": "triton>=3.7,<3.8  # what CUDA builds of this torch bring"}
OF_CUDA = re.compile(r"(nvidia|cuda)-(?!pytriton$).*")


def resolve(python: str) -> tuple[str, dict[str, str]]:
    """The interpreter's version, and each package's for it."""
    print(f"constraints: {python}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = [sys.executable, "-m", "pip", "--python", python, "install", "--dry-run", "--ignore-installed", "-q"]
        words += ["--only-binary=:all:", "--no-binary=covey", "--report", str(report)]
        subprocess.run([*words, "-c", str(FILE), f"{ROOT}[dev,loadtest]"], check=True)
        found = json.loads(report.read_text(encoding="utf-8"))
    pins = {}
    for item in found["install"]:
        name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
        if name != "covey" and name not in BY_HAND and not OF_CUDA.fullmatch(name):
            pins[name] = item["metadata"]["version"].partition("+")[0]
    return found["environment"]["python_version"], pins


def lines(pins: Mapping[str, Mapping[str, str]]) -> list[str]:
    """One file's, from each Python's pins."""
    found = list(BY_HAND.values())
    for name in {name for each in pins.values() for name in each}:
        versions = [pins[python].get(name) for python in VERSIONS]
        for version in dict.fromkeys(filter(None, reversed(versions))):
            marker = _marker([python for python, other in zip(VERSIONS, versions) if other == version])
            found.append(f"{name}=={version}" + (f" ; {marker}" if marker else ""))
    return sorted(found, key=lambda line: re.split(r"[=>]", line)[0])


def _marker(pythons: Sequence[str]) -> str:
    """What holds for these alone; "" for all."""
    first, last = VERSIONS.index(pythons[0]), VERSIONS.index(pythons[-1])
    assert list(VERSIONS[first : last + 1]) == list(pythons), f"not in a row: {', '.join(pythons)}"
    bounds = []
    if first > 0:
        bounds.append(f'python_version >= "{pythons[0]}"')
    if last < len(VERSIONS) - 1:
        bounds.append(f'python_version < "{VERSIONS[last + 1]}"')
    return " and ".join(bounds)


def main(interpreters: Iterable[str]) -> None:
    pins = dict(resolve(python) for python in interpreters)
    if set(pins) != set(VERSIONS):
        sys.exit(f"constraints: got Python {', '.join(sorted(pins)) or 'none'}, needed: {', '.join(VERSIONS)}")
    FILE.write_text(HEADER + "\n".join(lines(pins)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

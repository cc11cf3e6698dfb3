"""constraints.txt holds on every Python that is supported, and is what its command writes."""

from __future__ import annotations

import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

import constraints

LATEST_PATCH = 99


def pins(python: str) -> list[Requirement]:
    """Those of the file that hold for a Python."""
    text = constraints.FILE.read_text(encoding="utf-8")
    found = [Requirement(line) for line in re.sub(r"\s*#.*", "", text).splitlines() if line]
    environment = {"python_version": python, "python_full_version": f"{python}.{LATEST_PATCH}"}
    return [pin for pin in found if pin.marker is None or pin.marker.evaluate(environment)]


@pytest.mark.parametrize("python", constraints.VERSIONS)
def test_no_pin_is_for_another_python(python: str) -> None:
    """By what the installed packages say of themselves: those that this Python's pins name."""
    unfit, checked, held = [], 0, pins(python)
    assert len({pin.name for pin in held}) == len(held), "a package is pinned once"
    for pin in held:
        try:
            found = metadata(pin.name)
        except PackageNotFoundError:  # of another Python's, or of a CUDA build
            continue
        if pin.specifier.contains(found["Version"].partition("+")[0]):
            checked += 1
            if not SpecifierSet(found["Requires-Python"] or "").contains(f"{python}.{LATEST_PATCH}"):
                unfit.append(f"{pin} needs Python {found['Requires-Python']}")
    assert not unfit
    assert checked > 60


def test_a_version_that_not_all_can_have_gets_a_marker() -> None:
    found = constraints.lines(
        {
            "3.10": {"same": "1", "old": "1", "moved": "1", "between": "1"},
            "3.11": {"same": "1", "moved": "2", "between": "2"},
            "3.12": {"same": "1", "moved": "2", "between": "3", "new": "1"},
        }
    )
    assert found == [
        'between==3 ; python_version >= "3.12"',
        'between==2 ; python_version >= "3.11" and python_version < "3.12"',
        'between==1 ; python_version < "3.11"',
        'moved==2 ; python_version >= "3.11"',
        'moved==1 ; python_version < "3.11"',
        'new==1 ; python_version >= "3.12"',
        'old==1 ; python_version < "3.11"',
        "same==1",
        constraints.BY_HAND["triton"],
    ]


def interpreter(python: str) -> str:
    """One of that version, from PATH or among pyenv's; "" where there is none."""
    if sys.version_info[:2] == tuple(map(int, python.split("."))):
        return sys.executable
    found = sorted(Path.home().glob(f".pyenv/versions/{python}.*/bin/python"))
    return str(found[-1]) if found else shutil.which(f"python{python}") or ""


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("python", constraints.VERSIONS)
def test_pip_resolves_to_the_pins(python: str) -> None:
    """Asks the package index; minutes."""
    chosen = interpreter(python)
    if not chosen:
        pytest.skip(f"no Python {python} here")
    version, found = constraints.resolve(chosen)
    assert version == python
    wanted = {pin.name: str(pin.specifier).removeprefix("==") for pin in pins(python)}
    assert {name: wanted.get(name) for name in found} == found

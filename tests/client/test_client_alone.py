"""The client needs nothing of the server's package: it is installed by itself, and every command runs without it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from covey_client.cli import COMMANDS

CLIENT = Path(__file__).parents[2] / "client"
REFUSING = """
import importlib.abc, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "covey":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
sys.path.insert(0, sys.argv.pop(1))
import covey_client.cli
assert covey_client.__file__.startswith(sys.path[0]), covey_client.__file__
"""
ALONE = REFUSING + "sys.exit(covey_client.cli.main(sys.argv[1:]))"
EXPLAIN = """
for name in sys.argv[1:]:
    try:
        covey_client.cli.main([name, "--help"])
    except SystemExit as end:
        assert end.code == 0, name
    else:
        raise AssertionError(name)
"""
NOBODY = "127.0.0.1:9"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    shutil.copytree(CLIENT, source / "client", ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "-q"]
    subprocess.run([sys.executable, "-m", "pip", "install", *flags, "--target", target, source / "client"], check=True)
    return target


def command(installed: Path, *words: str, status: int) -> str:
    done = subprocess.run([sys.executable, "-c", ALONE, installed, *words], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def test_every_command_explains_itself(installed: Path) -> None:
    names = [each.__name__.rpartition(".")[2].replace("_", "-") for each in COMMANDS]
    code = REFUSING + EXPLAIN
    done = subprocess.run([sys.executable, "-c", code, installed, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(names) == 5
    for name in names:
        assert f"usage: covey {name} " in done.stdout


def test_what_needs_a_server_says_that_none_answers(installed: Path) -> None:
    for words in (
        ("status", "--url", NOBODY),
        ("status", "--url", NOBODY, "--decisions"),
        ("generate", "a", "--url", NOBODY),
    ):
        said = command(installed, *words, status=5)
        assert said.startswith("covey: "), said
        assert said.count("\n") == 1, said
        assert "`make serve` starts one" in said


def test_what_needs_the_server_s_package_says_so(installed: Path) -> None:
    assert "run this where the package covey is installed" in command(installed, "profiles", "check", status=2)
    assert "run this where the package covey is installed" in command(installed, "profiles", "explain", "x", status=2)


def test_tables_are_read(installed: Path) -> None:
    table = Path(__file__).parents[2] / "profiles" / "costs" / "emulated-7b-24g.json"
    read = "from covey_client.costs import surface, table; print(table.CostTable.load(sys.argv[1]).name)"
    code = REFUSING + read
    done = subprocess.run([sys.executable, "-c", code, installed, table], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "emulated-7b-24g"

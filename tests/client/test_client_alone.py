"""The client needs nothing of the server's package: it is installed by itself, and every command runs without it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

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
COMMAND = (
    REFUSING
    + """
import contextlib, io, json
from covey_client.costs import surface, table
said = [table.CostTable.load(sys.argv[2]).name]
for words in json.loads(sys.argv[1]):
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        try:
            status = covey_client.cli.main(words)
        except SystemExit as end:
            status = end.code
    said.append([status, told.getvalue()])
print(json.dumps(said))
"""
)
NOBODY = ("--url", "127.0.0.1:9")
TABLE = Path(__file__).parents[2] / "profiles" / "costs" / "emulated-7b-24g.json"


def test_it_works_where_it_is_installed_by_itself(tmp_path: Path) -> None:
    """Commands explain themselves; what needs a server or the server's package says so in one line; tables are read."""
    source, target = tmp_path / "source", tmp_path / "installed"
    shutil.copytree(CLIENT, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "-q"]
    subprocess.run([sys.executable, "-m", "pip", "install", *flags, "--target", target, source], check=True)
    names = [each.__name__.rpartition(".")[2].replace("_", "-") for each in COMMANDS]
    asking = [("status", *NOBODY), ("status", *NOBODY, "--decisions"), ("generate", "a", *NOBODY)]
    needing = [("profiles", "check"), ("profiles", "explain", "x")]
    words = [*((name, "--help") for name in names), *asking, *needing]
    ran = subprocess.run(
        [sys.executable, "-c", COMMAND, target, json.dumps(words), TABLE], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    table, *said = json.loads(ran.stdout)
    assert table == "emulated-7b-24g"
    assert len(names) == 5
    for name, (status, told) in zip(names, said):
        assert (status, f"usage: covey {name} " in told) == (0, True), told
    for status, told in said[len(names) : -len(needing)]:
        assert (status, told.count("\n"), told.startswith("covey: ")) == (5, 1, True), told
        assert "`make serve` starts one" in told
    for status, told in said[-len(needing) :]:
        assert status == 2
        assert "run this where the package covey is installed" in told

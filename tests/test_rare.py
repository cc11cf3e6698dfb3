"""Which files a branch has changed, and which long tests it therefore runs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import rare

Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """A repository on main, in `tmp_path / "own"`: two commits of one day, and one of years before."""
    (tmp_path / "own").mkdir()

    def run(*words: str, at: str = "own") -> str:
        named = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        said = subprocess.run(["git", *named, *words], cwd=tmp_path / at, capture_output=True, text=True, check=True)
        return said.stdout.strip()

    run("init", "-q", "-b", "main")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2020-01-01T00:00:00Z")
    add(tmp_path / "own", run, "zeroth")
    monkeypatch.delenv("GIT_COMMITTER_DATE")
    for name in ("first", "second"):
        add(tmp_path / "own", run, name)
    return run


def add(folder: Path, git: Git, name: str) -> None:
    (folder / name).write_text(name)
    git("add", name)
    git("commit", "-q", "-m", name)


def test_all_that_a_branch_and_its_working_tree_have_changed(git: Git, tmp_path: Path) -> None:
    own = tmp_path / "own"
    assert rare.changed(own) == {"first", "second"}, "main beside the day before"
    git("checkout", "-q", "-b", "branch")
    add(own, git, "third")
    add(own, git, "fourth")
    git("checkout", "-q", "main")
    add(own, git, "elsewhere")
    git("checkout", "-q", "branch")
    assert rare.changed(own) == {"third", "fourth"}
    (own / "first").write_text("other")
    (own / "new").write_text("new")
    assert rare.changed(own) == {"first", "new", "third", "fourth"}


def test_a_clone_without_history_has_changed_nothing_and_without_git_nobody_knows(git: Git, tmp_path: Path) -> None:
    git("clone", "-q", "--depth", "1", f"file://{tmp_path / 'own'}", "clone", at=".")
    assert rare.changed(tmp_path / "clone") == set()
    (tmp_path / "none").mkdir()
    assert rare.changed(tmp_path / "none") is None


@pytest.mark.parametrize("tests", rare.PARTS)
def test_a_part_s_tests_run_where_it_has_changed(tests: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = (tests, *rare.PARTS[tests], *rare.COMMON)
    assert all((rare.ROOT / source).exists() for source in sources), "what has moved is to be named anew"
    for found, left_out in (({"README.md"}, True), (None, False), *(({source}, False) for source in sources)):
        monkeypatch.setattr(rare, "changed", lambda _root, found=found: found)
        rare._unchanged.cache_clear()
        assert rare.is_left_out(f"{tests}/test_it.py") == left_out, found
    rare._unchanged.cache_clear()
    assert not rare.is_left_out("tests/loop/test_engine.py")

"""Long tests of parts that change seldom: `make test` runs them where those parts have changed, `make test-all` always.

What has changed is what git says of the working tree beside the place where its branch left main, and on main itself
beside the last commit of a day before the newest: several may land together. A clone without so much history has
changed what it has of it; where there is no git, nobody can tell, and all of them run.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

DAY_SECONDS = 24 * 3600
ROOT = Path(__file__).resolve().parents[1]
GPU = (
    "backends/covey/gpu",
    "backends/covey/models",
    "backends/covey/noise",
    "backends/covey/runtimes",
    "backends/covey/drafters",
    "backends/covey/sampling",
    "tests/interpreted.py",
)
SERVED = ("backends/covey/front", "backends/covey/process", "backends/covey/server", "client/covey_client")
TRAINING = ("backends/covey_training", "backends/covey/models", "backends/covey/prompts")
PARTS = {  # of which test files, and what they are about
    "tests/gpu": (*GPU, "tests/hopper.py"),
    "tests/loadtest/test_bench_gpu.py": (*GPU, "loadtest/bench"),
    "tests/training/test_aligned.py": (*TRAINING, "tests/training/conftest.py"),
    "tests/training/test_head.py": (*TRAINING, "tests/training/conftest.py"),
    "tests/training/test_own_drafter.py": (*TRAINING, "tests/training/conftest.py"),
    "tests/in_ray/test_nodes.py": (*SERVED, "backends/covey_ray", "tests/in_ray"),
    "tests/e2e/test_helm_live.py": (*SERVED, "docker", "tests/docker", "tests/e2e/pods.py", "tests/e2e/link.py"),
}
COMMON = ("tests/models/tiny_models.py", "constraints.txt")


def is_left_out(path: str) -> bool:
    """Whether a test file, by its path in the repository, is of a part that has not changed."""
    return path.startswith(_unchanged(ROOT))


@cache
def _unchanged(root: Path) -> tuple[str, ...]:
    found = changed(root)
    if found is None:
        return ()
    return tuple(
        tests
        for tests, sources in PARTS.items()
        if not any(path.startswith((tests, *sources, *COMMON)) for path in found)
    )


def changed(root: Path) -> set[str] | None:
    """Return the files that differ from those of main, by their paths; None where there is no git."""

    def git(*words: str) -> list[str]:
        said = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
        return [word for word in said.stdout.replace("\0", "\n").split("\n") if word]

    def first(*asked: tuple[str, ...]) -> str:
        for words in asked:
            try:
                found = git(*words)
            except subprocess.CalledProcessError:  # no such branch here
                continue
            if found:
                return found[0]
        return ""

    try:
        (head,) = git("rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return None
    base = first(("merge-base", head, "origin/main"), ("merge-base", head, "main"))
    if base in ("", head):
        before = int(git("log", "-1", "--format=%ct", head)[0]) - DAY_SECONDS
        base = first(("rev-list", "-1", f"--before={before}", head), ("rev-list", "--max-parents=0", head))
    return {*git("diff", "--name-only", "-z", base), *git("ls-files", "-z", "--others", "--exclude-standard")}

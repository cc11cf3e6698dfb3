"""Finds models by name on the Hugging Face hub: in its local cache, or by download. The name of a GGUF file stands for
the folder that is written from it.

A model is refused before its weights are fetched if its configuration or file names already rule it out.
huggingface_hub decides where the cache lies, who has access and whether it asks the hub (HF_HOME, HF_TOKEN,
HF_HUB_OFFLINE).
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from covey.launcher import converted
from covey.launcher.errors import StartError
from covey.launcher.options import Options, state_folder
from covey.models import refusals

NAME = re.compile(r"(?P<model>[\w][\w.-]*/[\w][\w.-]*)(@(?P<revision>[\w./-]+))?")
SMALL = ["*.json", "*.txt", "*.jinja", "*.model"]  # the files of a model's folder other than weights
WEIGHTS = ["*.safetensors"]
PICKLED = ["pytorch_model.bin"]  # some heads are published only so; the refusal says how to convert it
ELSEWHERE = ["*/*"]  # usually other formats of the same weights


def with_folders(options: Options) -> Options:
    """Return the options with folders in place of hub names and GGUF files."""
    model, drafter = (folder(name, options.state) for name in (options.model, options.drafter))
    return replace(options, model=model, drafter=drafter)


def folder(name: str, state: Path | None = None) -> str:
    """Return the folder of a model: of a folder, a hub name (MODEL or MODEL@REVISION), a GGUF file or a folder with
    one. Folders written from GGUF files are kept in `state`, by default the state folder of servers."""
    if name and (file := converted.gguf_file(Path(name))) is not None:
        return str(converted.folder(file, state or state_folder()))
    match = NAME.fullmatch(name)
    if match is None or Path(name).exists():
        return name
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # the terminal belongs to the server's own output
    small = Path(_snapshot(name, match["model"], match["revision"], SMALL))
    head = refusals.holds_head(small)
    if not head:
        refusals.servable(small)
    return _snapshot(name, match["model"], match["revision"], [*SMALL, *WEIGHTS, *(PICKLED if head else ())])


def _snapshot(name: str, model: str, revision: str | None, patterns: list[str]) -> str:
    from huggingface_hub import errors, snapshot_download

    asked: dict[str, Any] = {"revision": revision, "allow_patterns": patterns, "ignore_patterns": ELSEWHERE}
    try:
        return str(snapshot_download(model, **asked))
    except errors.GatedRepoError:
        why = "it is gated: ask its owner for access on its page, and set HF_TOKEN"
    except errors.RevisionNotFoundError:
        why = f"it has no revision {revision}"
    except errors.RepositoryNotFoundError:
        why = "the hub has no such model, or it is private: check the name, or set HF_TOKEN"
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        said = shorten(str(error).partition("\n")[0] or type(error).__name__, 120)
        why = f"it is not in the cache, and the hub does not answer ({said}): give a folder, or run hf download"
    raise StartError(f"{name} is neither a folder nor an available model on the Hugging Face hub: {why}")

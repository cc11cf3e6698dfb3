"""Finds models by their names on the Hugging Face hub, in its cache on this machine or by fetching them. A GGUF file is
a name, too: of the folder that is written from it.

What can be refused from a model's configuration or from the names of its files is refused before its weights are
fetched. Where the cache lies, who may read what and whether the hub is asked at all is huggingface_hub's to know
(HF_HOME, HF_TOKEN, HF_HUB_OFFLINE).
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.models import refusals
from covey.server import converted
from covey.server.errors import StartError
from covey.server.options import Options, state_folder

NAME = re.compile(r"(?P<model>[\w][\w.-]*/[\w][\w.-]*)(@(?P<revision>[\w./-]+))?")
SMALL = ["*.json", "*.txt", "*.jinja", "*.model"]  # what a model's folder has beside its weights
WEIGHTS = ["*.safetensors"]
ELSEWHERE = ["*/*"]  # other formats of the same weights, as a rule


def with_folders(options: Options) -> Options:
    """Return the same options with folders in place of hub names and GGUF files."""
    model, drafter = (folder(name, options.state) for name in (options.model, options.drafter))
    return replace(options, model=model, drafter=drafter)


def folder(name: str, state: Path | None = None) -> str:
    """Return the folder for a folder, a hub name (MODEL or MODEL@REVISION), a GGUF file or a folder with one. What is
    written from a GGUF file is kept in `state`, by default the state folder of servers."""
    if name and (file := converted.gguf_file(Path(name))) is not None:
        return str(converted.folder(file, state or state_folder()))
    match = NAME.fullmatch(name)
    if match is None or Path(name).exists():
        return name
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # a server's output is its own
    small = Path(_snapshot(name, match["model"], match["revision"], SMALL))
    refusals.servable(small)
    return _snapshot(name, match["model"], match["revision"], [*SMALL, *WEIGHTS])


def _snapshot(name: str, model: str, revision: str | None, patterns: list[str]) -> str:
    from huggingface_hub import errors, snapshot_download

    asked: dict[str, Any] = {"revision": revision, "allow_patterns": patterns, "ignore_patterns": ELSEWHERE}
    try:
        return str(snapshot_download(model, **asked))
    except errors.GatedRepoError:
        why = "its owner lets in those who asked: ask on its page, and set HF_TOKEN"
    except errors.RevisionNotFoundError:
        why = f"it has no revision {revision}"
    except errors.RepositoryNotFoundError:
        why = "the hub has no such model, or not for you: check the name, or set HF_TOKEN"
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        why = f"it is not in the cache, and the hub cannot be asked ({said[:120]}): give a folder, or run hf download"
    raise StartError(f"{name}: neither a folder nor a model to be had from the Hugging Face hub: {why}")

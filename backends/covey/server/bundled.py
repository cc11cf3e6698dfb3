"""Chooses what is served when the user names no model: the real model that `make setup` fetches, else the small pair
of the model repository."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path

from covey.contracts.profile import DEFAULT_PROFILE
from covey.server.errors import StartError
from covey.server.options import Options

REAL_PROFILE, REAL_MODEL = "smollm2", "SmolLM2-135M-Instruct"
MODELS_VARIABLE = "COVEY_MODELS"  # the folder of fetched models; unset: in the state
FETCH = "python -m covey.gguf.bundled"

log = logging.getLogger("covey.server")


def folder(state: Path) -> Path:
    """Return where the real model's folder is, whether it has been fetched or not."""
    named = os.environ.get(MODELS_VARIABLE)
    return (Path(named) if named else state / "models") / REAL_MODEL


def chosen(options: Options) -> Options:
    """Return the same options with a profile and, for the real model's profile, its folder. Raises StartError if that
    profile was named and the model is not here."""
    here = folder(options.state)
    fetched = (here / "config.json").is_file()
    if not options.profile:
        if not fetched and not options.model:
            log.warning("%s is not here (%s fetches it): the small test pair is served instead", REAL_MODEL, FETCH)
        real = fetched and not options.model
        options = replace(options, profile=REAL_PROFILE if real else DEFAULT_PROFILE)
    if options.profile != REAL_PROFILE or options.model:
        return options
    if not fetched:
        raise StartError(f"profile {REAL_PROFILE} needs {REAL_MODEL} in {here}: {FETCH} fetches it, or give --model")
    return replace(options, model=str(here))

"""Chooses the model when the user names none: the real model that `make setup` fetches, otherwise the small pair of the
model repository."""

from __future__ import annotations

import logging
from dataclasses import replace

from covey.contracts import profile
from covey.contracts.profile import DEFAULT_PROFILE
from covey.launcher import bundled
from covey.launcher.errors import StartError
from covey.launcher.options import Options
from covey.runtimes.choice import may_have_gpu

REAL_PROFILE, GPU_PROFILE = "smollm2", "gpu"
FETCH = "python -m covey.launcher.bundled"

log = logging.getLogger("covey.launcher")


def chosen(options: Options, *, gpu: bool | None = None) -> Options:
    """Return the options with a profile and, for the real model's profile, its folder. Raises StartError if the user
    named that profile and the model is missing. `gpu` says whether there is a GPU; None: look."""
    here = bundled.folder(options.state)
    fetched = here.is_dir()
    if not options.profile:
        if not fetched and not options.model:
            log.warning("%s is missing (%s fetches it): serving the small test pair instead", bundled.NAME, FETCH)
        real = fetched and not options.model
        own = GPU_PROFILE if options.model and (may_have_gpu() if gpu is None else gpu) else DEFAULT_PROFILE
        options = replace(options, profile=REAL_PROFILE if real else own)
    elif options.profile.endswith(".toml") and not options.model and options.bundled_repository():
        target = profile.load(options.profile).target
        if not target.folder and not target.emulated:
            log.warning("%s sets no target.folder: serving the small test pair", options.profile)
    if options.profile != REAL_PROFILE or options.model:
        return options
    if not fetched:
        raise StartError(f"profile {REAL_PROFILE} needs {bundled.NAME} in {here}: {FETCH} fetches it, or give --model")
    return replace(options, model=str(here))

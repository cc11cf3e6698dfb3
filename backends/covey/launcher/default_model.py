"""Chooses the model when the user names none. The real model that `make setup` fetches is for its own profile and for
others with its head. All other profiles get the small pair of the model repository."""

from __future__ import annotations

import logging
from dataclasses import replace

from covey.contracts import profile
from covey.contracts.profile import DEFAULT_PROFILE, Profile
from covey.launcher import bundled
from covey.launcher.errors import StartError
from covey.launcher.options import Options
from covey.runtimes.choice import may_have_gpu

REAL_PROFILE, GPU_PROFILE = "smollm2", "gpu"
HEAD = "draft_smollm2"  # of the real model
FETCH = "python -m covey.launcher.bundled"

log = logging.getLogger("covey.launcher")


def chosen(options: Options, *, gpu: bool | None = None) -> Options:
    """Return the options with a profile and, for the real model's profiles, its folder. Raises StartError if the user
    named such a profile and the model is missing. `gpu` says whether there is a GPU; None: look."""
    fetched = bundled.folder(options.state).is_dir()
    if not options.profile:
        if not fetched and not options.model:
            log.warning("%s is missing (%s fetches it): serving the small test pair instead", bundled.NAME, FETCH)
        real = fetched and not options.model
        other = GPU_PROFILE if options.model and (may_have_gpu() if gpu is None else gpu) else DEFAULT_PROFILE
        options = replace(options, profile=REAL_PROFILE if real else other)
    elif options.profile.endswith(".toml") and not options.model and options.bundled_repository():
        own = profile.load(options.profile)
        if serves_test_pair(options.profile, own):
            log.warning("%s has no target.folder: serving the small test pair; MODEL= names another", options.profile)
        elif means_real_model(own):
            return _with_real_model(options)
    return options if options.profile != REAL_PROFILE or options.model else _with_real_model(options)


def means_real_model(own: Profile) -> bool:
    """Return whether a profile that names no target is for the real model."""
    return own.target.head == HEAD and not own.target.folder and not own.target.emulated


def serves_test_pair(name: str, own: Profile) -> bool:
    """Return whether a user's profile of this name or path has a target but says nothing about its model."""
    named = own.target.folder or own.target.emulated or means_real_model(own)
    return name.endswith(".toml") and "target" in own.models and not named


def _with_real_model(options: Options) -> Options:
    here = bundled.folder(options.state)
    if not here.is_dir():
        raise StartError(
            f"profile {options.profile} needs {bundled.NAME} in {here}: {FETCH} fetches it, or give --model"
        )
    return replace(options, model=str(here))

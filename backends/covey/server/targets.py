"""Builds the model repository of a server with several targets: the committed one, and two more entries for each
target.

    target_NAME   the target of that profile
    covey_NAME    its orchestrator
    covey         the router before them, in the orchestrator's place

With one target nothing of this is made, and `covey` is its orchestrator. What is made is links and configurations.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from covey.contracts import profile
from covey.process.private import private_folder, whole_folder
from covey.server.errors import StartError
from covey.server.options import ORCHESTRATOR, Options

TARGET = "target"


def placed(options: Options) -> Options:
    """Return the same options, with the repository and the models of all targets if the profile names several."""
    settings = profile.load(options.profile)
    if not settings.targets:
        return options
    named = profile.targets(settings, profile.find(options.profile))
    wanted = options.models if options.models is not None else settings.models
    if TARGET in wanted or ORCHESTRATOR not in wanted:
        raise StartError(f"targets: models of profile {options.profile} are to have {ORCHESTRATOR} and no {TARGET}")
    if options.model:
        raise StartError("--model is for one target: with several, each one's profile says it (target.folder)")
    files = _configurations(options.repository_folder(), {name: own for name, (own, _) in named.items()})
    made = (f"{kind}_{name}" for kind in (TARGET, ORCHESTRATOR) for name in named)  # an orchestrator needs its target
    return replace(options, models=(*wanted, *made), model_repository=_build(options, files))


def _configurations(repository: Path, profiles: dict[str, str]) -> dict[str, str]:
    """Return the configuration of each entry that the committed repository lacks or has otherwise."""
    own = {kind: (repository / kind / "config.pbtxt").read_text(encoding="utf-8") for kind in (TARGET, ORCHESTRATOR)}
    target, orchestrator = _parameter("target", TARGET), 'backend: "orchestrator"'
    if own[ORCHESTRATOR].count(target) != 1 or own[ORCHESTRATOR].count(orchestrator) != 1:
        raise StartError(f"targets: {repository}/{ORCHESTRATOR} is not the orchestrator's configuration")
    router = own[ORCHESTRATOR].replace(orchestrator, 'backend: "router"').replace(target, "")
    found = {ORCHESTRATOR: router + _parameter("targets", ",".join(profiles))}
    for name, path in profiles.items():
        found[f"{TARGET}_{name}"] = own[TARGET] + _parameter("profile", path)
        its = own[ORCHESTRATOR].replace(target, _parameter("target", f"{TARGET}_{name}"))
        found[f"{ORCHESTRATOR}_{name}"] = its + _parameter("profile", path) + _parameter("of", name)
    return found


def _parameter(key: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'parameters {{ key: "{key}" value {{ string_value: "{escaped}" }} }}\n'


def _build(options: Options, files: dict[str, str]) -> Path:
    """Return a folder of links, named by a digest of its contents; an existing one is as it must be."""
    repository = options.repository_folder().resolve()
    entries = sorted(path for path in repository.iterdir() if path.is_dir() and path.name not in files)
    text = repr([str(repository), [path.name for path in entries], sorted(files.items())])
    state = options.state.resolve()
    private_folder(state)  # what lies in it is run
    final = state / f"repository-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if final.is_dir():
        return final
    with whole_folder(final) as building:
        for path in entries:
            (building / path.name).symlink_to(path)
        for name, configuration in files.items():
            (building / name).mkdir()
            (building / name / "config.pbtxt").write_text(configuration, encoding="utf-8")
            (building / name / "1").symlink_to(repository / name.partition("_")[0] / "1")
    return final

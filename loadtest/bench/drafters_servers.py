"""Starts one server, and on it an orchestrator for each system that is compared.

Target and drafters are the same processes for all, so that nothing but the choice differs; a server for each system
would take some 4 GB each and could not be asked in turns of a second. Orchestrators are asked one after the other: the
target serves one at a time, and closes what another left open. Each learns from its own requests alone and keeps what
it has learnt from turn to turn.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from covey.contracts import profile
from covey.contracts.profile import Profile
from covey.server import Server
from covey.server.options import ORCHESTRATOR
from covey.tritonio import link
from loadtest.bench.derive import derive
from loadtest.bench.over_triton import OverTriton
from loadtest.bench.session import Session
from loadtest.bench.work import Ask
from loadtest.bench.workload import SPECIALISTS

OFF, GENERAL, ORACLE, COVEY, RANDOM = "off", "general", "oracle", "covey", "random"
UCB_BE, UCB_BD = "ucb-be", "ucb-bd"
SUFFIX, HEAD = "suffix", "head"
LOAD_SECONDS = 600.0
POLL_SECONDS = 0.1


@dataclass(frozen=True)
class DrafterSystem:
    """Names a system's settings of the profile's `speculation`, and the drafters that requests name, by domain."""

    speculation: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def ask(self, ask: Ask) -> Ask:
        return replace(ask, drafter=self.names.get(ask.domain, ""))


def _chosen_by(policy: str) -> DrafterSystem:
    return DrafterSystem({"drafter_policy": policy})


COMPARED = {  # `covey`, and those that the keys compare it with: plain decoding, and of rewards of UCB the better
    OFF: DrafterSystem({"policy": "off"}),
    GENERAL: _chosen_by("fixed:draft_general"),
    SUFFIX: _chosen_by("fixed:draft_suffix"),
    HEAD: _chosen_by("fixed:draft_head"),
    RANDOM: _chosen_by(RANDOM),
    UCB_BE: _chosen_by(UCB_BE),
    UCB_BD: _chosen_by(UCB_BD),
    COVEY: _chosen_by(COVEY),
    ORACLE: DrafterSystem({"drafter_policy": "fixed"}, SPECIALISTS),
}
ALONE = {domain: _chosen_by(f"fixed:{name}") for domain, name in SPECIALISTS.items() if domain != "edits"} | {
    "lookup": _chosen_by("fixed:draft_ngram"),
}
OTHERS = {name: _chosen_by(name) for name in ("exp3", "sh", "petc", "d-ucb", "sw-ucb")}
ALL = COMPARED | ALONE | OTHERS


@contextmanager
def serving(session: Session, systems: Mapping[str, DrafterSystem]) -> Iterator[dict[str, OverTriton]]:
    """Yield whom to ask, by system; all serve, and end with the context."""
    settings = profile.load(session.wanted.profile)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options = session.wanted.options()
        models = {name: f"{ORCHESTRATOR}_{place}" for place, name in enumerate(systems)}
        repository = _repository(options.repository_folder(), folder, settings, systems, models)
        loaded = ("target", ORCHESTRATOR, *settings.speculation.drafters)
        server = stack.enter_context(session.server(replace(options, model_repository=repository, models=loaded)))
        for model in session.each([(f"loading: {name}", model) for name, model in models.items()]):
            _load(server, model)
            stack.callback(server.control.unload, model)
        yield {name: OverTriton(server, name, stream=True, model=model) for name, model in models.items()}


def _repository(
    original: Path, folder: Path, settings: Profile, systems: Mapping[str, DrafterSystem], models: Mapping[str, str]
) -> Path:
    """Make a repository of the models as they are, and beside them the orchestrators, each with a profile of its
    own."""
    made = folder / "models"
    made.mkdir()
    for each in original.iterdir():
        if each.is_dir():
            (made / each.name).symlink_to(each.resolve())
    config = (original / ORCHESTRATOR / "config.pbtxt").read_text()
    for name, model in models.items():
        own = derive(settings, folder / f"{model}.toml", speculation=dict(systems[name].speculation))
        (made / model / "1").mkdir(parents=True)
        parameter = f'parameters {{ key: "profile" value {{ string_value: "{own}" }} }}\n'
        (made / model / "config.pbtxt").write_text(config + parameter)
    return made


def _load(server: Server, model: str) -> None:
    """Load an orchestrator while no other is: each may measure what rounds take, on a target that serves one at a
    time."""
    replace(server.control, seconds=LOAD_SECONDS).load(model)
    while not link.serves(model, server.pid):
        server.check()
        time.sleep(POLL_SECONDS)

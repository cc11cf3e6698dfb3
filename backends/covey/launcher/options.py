"""The options of a start: one frozen Options, from Python or from the command line."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from covey.contracts import profile
from covey.contracts.profile import DEFAULT_PROFILE, Profile
from covey.models import refusals
from covey.process.private import KEPT_VARIABLE
from covey_client import InvalidRequest, secret

FREE = 0  # a port of 0: choose any free one
FREE_PORTS = {"http_port": FREE, "grpc_port": FREE, "metrics_port": FREE}
SOURCE = Path(__file__).resolve().parents[2]  # backends/ of the checkout, if the package is installed from it

ORCHESTRATOR = "covey"
PUBLIC_MODELS = ("ensemble", "covey_unary", ORCHESTRATOR)  # in the order in which a drain closes them


def state_folder() -> Path:
    """Return the folder for backend directories and logs: in the virtual environment, or the user's part of the
    temporary folder. Does not create it."""
    inside = Path(sys.prefix)
    return inside / "covey" if os.access(inside, os.W_OK) else Path(tempfile.gettempdir()) / f"covey-{os.getuid()}"


def reachable(host: str) -> str:
    """Return the host to connect to for a server that listens on `host`."""
    return "127.0.0.1" if host in ("", "0.0.0.0") else host


MOST_GIB = 1 << 20  # of a GPU


@dataclass(frozen=True)
class Options:
    """The options of one server. Paths left None are found near the package or in the environment (COVEY_BACKENDS,
    COVEY_MODEL_REPOSITORY, COVEY_TRITON)."""

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    # The ports of the front (`covey.front`); None: no front.
    front_http_port: int | None = None
    front_grpc_port: int | None = None
    front_host: str = "127.0.0.1"
    served_model_name: tuple[str, ...] = ()  # the model's names in OpenAI's routes; none: `covey`
    # Name or path for covey.contracts.profile.load; "": `covey.launcher.default_model` chooses.
    profile: str = DEFAULT_PROFILE
    model: str = ""  # the target: a folder, a GGUF file or a hub name; "": the model repository's own
    drafter: str = ""  # a model that drafts for it, given likewise; "": the profile's drafters
    dtype: str = ""  # of the target's weights and KV; "": the profile's
    models: tuple[str, ...] | None = None  # Triton models to load; None: the profile's
    model_repository: Path | None = None
    backends: Path | None = None
    triton: Path | None = None  # folder with bin/tritonserver and backends/python; None: the wheel's
    state: Path = field(default_factory=state_folder)
    kept: Path | None = None  # folder of measured curves; None: COVEY_KEPT, or in `state`
    log_file: Path | None = None
    verbose: int = 0
    load_seconds: float = 600.0
    drain_seconds: float = 30.0
    stop_seconds: float = 15.0  # between SIGTERM and SIGKILL
    # The secret for administrative calls; "": draw one at each start (covey.launcher.admin).
    admin_secret: str = field(default_factory=secret.given, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict)  # added to tritonserver's
    extra: tuple[str, ...] = ()  # more tritonserver flags
    plan: float | None = None  # with a number, start nothing and say what fits beside so many GiB of a GPU

    def backends_folder(self) -> Path:
        return self.backends or Path(os.environ.get("COVEY_BACKENDS") or SOURCE)

    def deployment(self) -> Profile:
        """Return the profile with the drafter that `drafter` names."""
        chosen = profile.with_dtype(profile.load(self.profile), self.dtype)
        return profile.with_drafter(chosen, self.drafter_entry(), self.drafter) if self.drafter else chosen

    def drafter_entry(self) -> str:
        """Return the entry of the model repository that runs `drafter`."""
        return profile.HEAD if refusals.holds_head(Path(self.drafter)) else profile.GENERAL

    def kept_folder(self) -> Path:
        named = os.environ.get(KEPT_VARIABLE)
        return (self.kept or (Path(named) if named else self.state / "kept")).resolve()

    def repository_folder(self) -> Path:
        named = os.environ.get("COVEY_MODEL_REPOSITORY")
        return self.model_repository or (Path(named) if named else self.backends_folder().parent / "model_repository")

    def bundled_repository(self) -> bool:
        """Return whether the model repository is Covey's own."""
        return self.repository_folder() == self.backends_folder().parent / "model_repository"


class OneLine(argparse.ArgumentParser):
    """Reports an error in one line, like every failed start."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"covey: cannot start: {message} ({self.prog} --help lists the options)\n")


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line. Ends the process on an error, as argparse does."""
    parser = OneLine(prog="python -m covey.launcher", description="Serve Covey on NVIDIA Triton.")
    try:
        usual = Options()
    except InvalidRequest as error:
        parser.error(str(error))
    parser.add_argument("--host", default=usual.host, help="address to listen on (default: loopback only)")
    parser.add_argument("--http-port", type=int, default=usual.http_port, metavar="PORT", help="0 picks a free one")
    parser.add_argument("--grpc-port", type=int, default=usual.grpc_port, metavar="PORT")
    parser.add_argument("--metrics-port", type=int, default=usual.metrics_port, metavar="PORT")
    parser.add_argument("--profile", default="", help="name or path of a deployment profile (default: smollm2)")
    parser.add_argument("--front-http-port", type=int, metavar="PORT", help="of the front, which may be public")
    parser.add_argument("--front-grpc-port", type=int, metavar="PORT")
    parser.add_argument("--front-host", default=usual.front_host, help="address that the front listens on")
    parser.add_argument("--served-model-name", nargs="+", default=[], metavar="NAME", help="of the model in /v1")
    named = "folder, GGUF file, or name on the Hugging Face hub (MODEL or MODEL@REVISION), of the"
    parser.add_argument("--model", default="", metavar="MODEL", help=f"{named} target")
    parser.add_argument(
        "--drafter", default="", metavar="MODEL", help=f"{named} model or EAGLE-3 head that drafts for it"
    )
    parser.add_argument(
        "--dtype", default="", choices=profile.TARGET_DTYPES, help="of the target; auto: its checkpoint's own"
    )
    parser.add_argument("--model-repository", type=Path, metavar="FOLDER")
    parser.add_argument("--backends", type=Path, metavar="FOLDER", help="folder with orchestrator/, target/, ...")
    parser.add_argument("--triton", type=Path, metavar="FOLDER", help="another Triton installation than the wheel's")
    parser.add_argument("--kept", type=Path, metavar="FOLDER", help="measured curves (private)")
    parser.add_argument("--log-file", type=Path, metavar="FILE")
    parser.add_argument("--verbose", type=int, nargs="?", const=1, default=0, metavar="LEVEL", help="Triton's own")
    parser.add_argument("--load-seconds", type=float, default=usual.load_seconds, metavar="S")
    parser.add_argument("--drain-seconds", type=float, default=usual.drain_seconds, metavar="S")
    free = "start nothing: say what memory the models would take, with so many GiB free on a GPU (0: none)"
    parser.add_argument("--plan", type=float, metavar="GIB", help=free)
    parser.add_argument("extra", nargs="*", metavar="-- FLAG", help="more flags for tritonserver")
    given = vars(parser.parse_args(arguments))
    if (given["front_http_port"] is None) != (given["front_grpc_port"] is None):
        parser.error("the front needs two ports: give --front-http-port and --front-grpc-port")
    if given["plan"] is not None and not 0 <= given["plan"] < MOST_GIB:
        parser.error(f"--plan: got {given['plan']:g}, allowed: 0 to {MOST_GIB}")
    names = given["served_model_name"]
    if "" in names or len(set(names)) < len(names):
        parser.error(f"--served-model-name: got {names}, allowed: non-empty names, each once")
    return Options(**given | {"extra": tuple(given["extra"]), "served_model_name": tuple(names)})

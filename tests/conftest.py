"""The real tritonserver with a backend that answers on command: what the launcher and the client are tested against;
and which tests run, in which order and in which process."""

from __future__ import annotations

import os

# Before torch is imported anywhere: threads that spin after a parallel region steal the cores of the processes beside.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:  # as many processes as cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# Before gRPC is loaded anywhere: around a fork it ends its threads and starts them anew from the thread that forked,
# which may be one that lives on another host (`tests.e2e.hosts`), where they then connect from.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# Before a kernel is defined anywhere: where there is no GPU, kernels run in their language's interpreter.
if not os.path.exists("/proc/driver/nvidia/version"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

import atexit
import gc
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from covey.launcher import FREE, Options, Server
from covey.models.native import compiled
from covey.process.private import KEPT_VARIABLE
from covey_client import wire
from tests.aborts import pytest_pyfunc_call  # noqa: F401 - a hook

if "PYTEST_XDIST_WORKER" not in os.environ:  # what a busy machine measures serves nobody later, but all of this run
    os.environ[KEPT_VARIABLE] = tempfile.mkdtemp(prefix="covey-kept-")
    atexit.register(shutil.rmtree, os.environ[KEPT_VARIABLE], ignore_errors=True)

CANNED = Path(__file__).parent / "launcher" / "canned_backend.py"
LONG = (
    "tests/test_lossless_grid.py",
    "tests/gpu/",
    "tests/training/test_aligned.py",
    "tests/e2e/test_faults.py",
    "tests/in_ray/test_nodes.py",
    *(f"tests/e2e/test_{name}.py" for name in ("revival", "helm_live", "drain", "costs", "start")),
    "tests/front/test_front_live.py",
    "tests/loadtest/test_faults_run.py",
    *(f"tests/e2e/test_{name}.py" for name in ("star", "elastic")),
)
SERVED = re.compile(r"^pytestmark = .*\bpytest\.mark\.e2e\b", re.MULTILINE)
CROWDED = tuple(f"tests/e2e/test_{name}.py" for name in ("revival", "load", "readme", "speculation"))
SHARED = tuple(
    f"tests/e2e/test_{name}.py"
    for name in (
        *("costs", "clients", "front", "grammars_served", "interfaces", "long_company", "one_thread"),
        *("openai", "openai_routes", "raw_bytes", "refusals"),
    )
)


@dataclass(frozen=True)
class Canned:
    """A folder with one backend and the models that use it."""

    folder: Path

    @property
    def marks(self) -> Path:
        return self.folder / "marks"

    def add(self, model: str, *, decoupled: bool = True, **parameters: str) -> None:
        """A model in the repository; `parameters` become its configuration's."""
        (self.folder / "models" / model / "1").mkdir(parents=True)
        (self.folder / "models" / model / "config.pbtxt").write_text(
            _config(decoupled, {"marks": str(self.marks)} | parameters)
        )

    def options(self, *models: str) -> Options:
        return Options(
            http_port=FREE,
            grpc_port=FREE,
            metrics_port=FREE,
            models=models or ("covey",),
            model_repository=self.folder / "models",
            backends=self.folder / "backends",
            state=self.folder / "state",
            load_seconds=60.0,
            drain_seconds=5.0,
            stop_seconds=1.0,
        )

    def command(self, *models: str) -> list[str]:
        """The command line of a launcher."""
        (self.folder / "tiny.toml").write_text(f"models = {list(models)}\n")
        words = ["--profile", str(self.folder / "tiny.toml"), "--model-repository", str(self.folder / "models")]
        words += ["--backends", str(self.folder / "backends")]
        words += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
        return [sys.executable, "-m", "covey.launcher", *words]

    def server(self, *models: str, **changes: object) -> Server:
        return Server(replace(self.options(*models), **changes))  # type: ignore[arg-type]


def _config(decoupled: bool, parameters: dict[str, str]) -> str:
    lines = ['backend: "canned"', "max_batch_size: 0"]
    lines.append(f"model_transaction_policy {{ decoupled: {str(decoupled).lower()} }}")
    lines.append("instance_group [ { count: 1 kind: KIND_CPU } ]")
    for kind, fields, optional in (("input", wire.INPUTS, " optional: true"), ("output", wire.OUTPUTS, "")):
        for field in fields:
            dtype = {"BYTES": "STRING"}.get(field.dtype, field.dtype)
            dims = -1 if field.many else 1
            lines.append(f'{kind} [ {{ name: "{field.name}" data_type: TYPE_{dtype} dims: [ {dims} ]{optional} }} ]')
    lines += [f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}' for key, value in parameters.items()]
    return "\n".join(lines) + "\n"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that no process ends long after the others."""
    items.sort(key=lambda item: next((at for at, name in enumerate(LONG) if item.nodeid.startswith(name)), len(LONG)))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave a file alone if the real server is behind each of its tests and none of those is asked for: what it imports
    takes seconds."""
    if collection_path.suffix != ".py" or "not e2e" not in config.getoption("markexpr").split(" and "):
        return None
    return True if SERVED.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile for all unit tests what they need: the first one that needed it would take half a minute longer."""
    if "PYTEST_XDIST_WORKER" not in os.environ and "not e2e" in session.config.getoption("markexpr"):
        compiled.ensure(compiled.VARIANTS, patient=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Hardly anything of what is imported and collected is garbage: it is looked for once, when all is there."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Modules and tests stay until the process ends: each full collection of garbage would look at their million
    objects again, for half a second."""
    gc.collect()
    gc.freeze()


class ByServer(LoadFileScheduling):  # type: ignore[misc]
    """One process for each file, and for all files of a server that is the same and takes long to start."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return next((group[0] for group in (CROWDED, SHARED) if file in group), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return ByServer(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def canned_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Canned]:
    """Makes folders with the canned backend and a decoupled model `covey`."""

    def make() -> Canned:
        made = Canned(tmp_path_factory.mktemp("canned"))
        made.marks.mkdir()
        (made.folder / "backends" / "canned").mkdir(parents=True)
        shutil.copy(CANNED, made.folder / "backends" / "canned" / "model.py")
        made.add("covey")
        return made

    return make


@pytest.fixture(scope="session")
def canned_server(canned_folder: Callable[[], Canned]) -> Iterator[tuple[Server, Canned]]:
    """One running server with `covey`, `covey_unary` and `doomed`, whose process a test may kill."""
    canned = canned_folder()
    canned.add("covey_unary", decoupled=False)
    canned.add("doomed")
    with canned.server("covey", "covey_unary", "doomed", drain_seconds=0.0) as server:
        yield server, canned

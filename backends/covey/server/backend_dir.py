"""Builds Triton's backend directory: its python backend with the stub of this interpreter, and Covey's backends.

Covey's backends are links; Triton's library is copied, because Triton refuses one that is a link out of its folder.
The name digests what is in it: two servers may build it at once, and an upgrade gets another directory. Every server
holds a shared lock on its own, which its processes inherit; what nobody holds is removed by the next start.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from covey.care import processes
from covey.process.private import private_folder
from covey.server.errors import StartError
from covey.server.installation import Installation

LOCK = "lock"
LIBRARY = "libtriton_{}.so"
# Backends with settings of their own. Triton gives those to a backend that has a library by its name, and to no other
# that is written in Python; the library is the python backend's under another name. The orchestrator's calls in flight
# and its sends need many threads; with as many for each model a server would not fit into a container.
OWN_LIBRARY = ("orchestrator", "router")


@dataclass(frozen=True)
class Assembled:
    """A backend directory that stays as long as a process has `fd` open."""

    path: Path
    fd: int

    def release(self) -> None:
        os.close(self.fd)


def backend_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the python-based backends in `folder`: its subfolders with a model.py."""
    if not folder.is_dir():
        raise StartError(f"{folder} is no folder of backends: give --backends or COVEY_BACKENDS")
    names = tuple(sorted(path.parent.name for path in folder.glob("*/model.py")))
    if not names:
        raise StartError(f"{folder} holds no backend (NAME/model.py): give --backends or COVEY_BACKENDS")
    return names


def assemble(installation: Installation, backends: Path, state: Path) -> Assembled:
    """Return the directory for `--backend-directory`, locked; builds it if it is not there yet."""
    copies = {path.name: path for path in installation.python_backend.iterdir() if path.is_file()}
    copies["triton_python_backend_stub"] = installation.stub
    links = {name: (backends / name).resolve() for name in backend_names(backends)}
    private_folder(state)  # what lies in it is run
    final = state / f"backends-{_digest(installation, copies, links)}"
    while True:
        if not final.is_dir():
            _build(final, copies, links)
        try:
            fd = os.open(final / LOCK, os.O_RDONLY)
        except FileNotFoundError:  # another start has removed it meanwhile
            continue
        fcntl.flock(fd, fcntl.LOCK_SH)
        if (final / LOCK).exists() and os.path.samestat(os.stat(final / LOCK), os.fstat(fd)):
            return Assembled(final, fd)
        os.close(fd)


def prune(state: Path) -> tuple[str, ...]:
    """Remove the directories that no server holds; returns their names."""
    removed = []
    for folder in sorted(state.glob("backends-*")):
        try:
            fd = os.open(folder / LOCK, os.O_RDONLY)
        except FileNotFoundError:  # an earlier release's: its servers had no lock, but name it
            if not processes.named_by(str(folder)):
                removed.append(_remove(folder))
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            removed.append(_remove(folder))
        except BlockingIOError:  # it is in use
            pass
        finally:
            os.close(fd)
    return tuple(removed)


def _build(final: Path, copies: dict[str, Path], links: dict[str, Path]) -> None:
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=final.parent))
    try:
        (building / "python").mkdir()
        for name, path in copies.items():
            shutil.copy2(path, building / "python" / name)
        for name, path in links.items():
            if name in OWN_LIBRARY:
                (building / name).mkdir()
                (building / name / "model.py").symlink_to(path / "model.py")
                os.link(building / "python" / LIBRARY.format("python"), building / name / LIBRARY.format(name))
            else:
                (building / name).symlink_to(path)
        (building / LOCK).touch()
        building.chmod(0o755)
        os.rename(building, final)
    except OSError:
        if not final.is_dir():  # else another server was quicker, with the same links
            raise
        shutil.rmtree(building)


def _remove(folder: Path) -> str:
    """Rename a directory and remove it; returns its name. A start that looks for it meanwhile builds it anew."""
    doomed = folder.with_name(f".removing-{folder.name}-{os.getpid()}")
    os.rename(folder, doomed)
    shutil.rmtree(doomed)
    return folder.name


def _digest(installation: Installation, copies: dict[str, Path], links: dict[str, Path]) -> str:
    lines = [installation.version, LOCK, *OWN_LIBRARY]
    for name, path in sorted(copies.items()):
        status = path.stat()
        lines.append(f"{name} {path} {status.st_size} {status.st_mtime_ns}")
    lines += [f"{name} -> {path}" for name, path in sorted(links.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

"""Builds Triton's backend directory: its python backend with the stub of this interpreter, and Covey's backends.

Covey's backends are links. Triton's library is copied, because Triton refuses a link out of its folder. The directory's
name is a digest of its content, so two servers can build it at once and an upgrade gets a new one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from covey.launcher.errors import StartError
from covey.launcher.installation import Installation
from covey.process.private import private_folder, whole_folder

LIBRARY = "libtriton_{}.so"
# This backend has its own settings. Triton gives those only to a backend with its own library, so the python backend's
# library is copied under this name. The orchestrator needs many threads for its calls in flight and its sends; with as
# many for each model, a server would not fit into a container.
OWN_LIBRARY = "orchestrator"


def backend_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the Python backends in `folder`: its subfolders with a model.py."""
    if not folder.is_dir():
        raise StartError(f"{folder} is not a folder of backends: give --backends or COVEY_BACKENDS")
    names = tuple(sorted(path.parent.name for path in folder.glob("*/model.py")))
    if not names:
        raise StartError(f"{folder} holds no backend (NAME/model.py): give --backends or COVEY_BACKENDS")
    return names


def assemble(installation: Installation, backends: Path, state: Path) -> Path:
    """Return the directory for `--backend-directory`, built if necessary."""
    copies = {path.name: path for path in installation.python_backend.iterdir() if path.is_file()}
    copies["triton_python_backend_stub"] = installation.stub
    links = {name: (backends / name).resolve() for name in backend_names(backends)}
    private_folder(state)  # Triton runs the code in it
    final = state / f"backends-{_digest(installation, copies, links)}"
    if not final.is_dir():
        _build(final, copies, links)
    return final


def _build(final: Path, copies: dict[str, Path], links: dict[str, Path]) -> None:
    with whole_folder(final) as building:
        (building / "python").mkdir()
        for name, path in copies.items():
            shutil.copy2(path, building / "python" / name)
        for name, path in links.items():
            if name == OWN_LIBRARY:
                (building / name).mkdir()
                (building / name / "model.py").symlink_to(path / "model.py")
                os.link(building / "python" / LIBRARY.format("python"), building / name / LIBRARY.format(name))
            else:
                (building / name).symlink_to(path)


def _digest(installation: Installation, copies: dict[str, Path], links: dict[str, Path]) -> str:
    lines = [installation.version, OWN_LIBRARY]
    for name, path in sorted(copies.items()):
        status = path.stat()
        lines.append(f"{name} {path} {status.st_size} {status.st_mtime_ns}")
    lines += [f"{name} -> {path}" for name, path in sorted(links.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

"""Triton's backend directory: its python backend with the stub of this interpreter, and Covey's backends beside it.

Covey's backends are links; Triton's library is copied, because Triton refuses one that is a link out of its folder.
The name digests what is in it: two servers may build it at once, an upgrade gets another directory, and a server that
runs keeps its own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from covey.server.errors import StartError
from covey.server.installation import Installation


def backend_names(folder: Path) -> tuple[str, ...]:
    """The python-based backends in `folder`: its subfolders with a model.py."""
    if not folder.is_dir():
        raise StartError(f"{folder} is no folder of backends: give --backends or COVEY_BACKENDS")
    names = tuple(sorted(path.parent.name for path in folder.glob("*/model.py")))
    if not names:
        raise StartError(f"{folder} holds no backend (NAME/model.py): give --backends or COVEY_BACKENDS")
    return names


def assemble(installation: Installation, backends: Path, state: Path) -> Path:
    """The directory for `--backend-directory`; builds it where it is not there yet."""
    copies = {path.name: path for path in installation.python_backend.iterdir() if path.is_file()}
    copies["triton_python_backend_stub"] = installation.stub
    links = {name: (backends / name).resolve() for name in backend_names(backends)}
    final = state / f"backends-{_digest(installation, copies, links)}"
    if final.is_dir():
        return final
    state.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=state))
    try:
        (building / "python").mkdir()
        for name, path in copies.items():
            shutil.copy2(path, building / "python" / name)
        for name, path in links.items():
            (building / name).symlink_to(path)
        building.chmod(0o755)
        os.rename(building, final)
    except OSError:
        if not final.is_dir():  # else another server was quicker, with the same links
            raise
        shutil.rmtree(building)
    return final


def _digest(installation: Installation, copies: dict[str, Path], links: dict[str, Path]) -> str:
    lines = [installation.version]
    for name, path in sorted(copies.items()):
        found = path.stat()
        lines.append(f"{name} {path} {found.st_size} {found.st_mtime_ns}")
    lines += [f"{name} -> {path}" for name, path in sorted(links.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

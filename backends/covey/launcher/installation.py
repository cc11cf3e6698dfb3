"""Finds tritonserver and what it needs to start: the wheel nvidia-pytriton, or a folder laid out like it."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from covey.launcher.errors import StartError

WHEEL = "nvidia-pytriton"
MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
GLIBC = (2, 35)  # the version that the wheel's binary needs


@dataclass(frozen=True)
class Installation:
    """The paths of a Triton installation."""

    binary: Path
    python_backend: Path
    stub: Path
    libraries: tuple[Path, ...]
    version: str


def find(folder: Path | None) -> Installation:
    """Return the installation in `folder`, in COVEY_TRITON, or in the wheel."""
    named = folder or (Path(os.environ["COVEY_TRITON"]) if os.environ.get("COVEY_TRITON") else None)
    python_libraries = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    if named is not None:
        own_stub = named / "backends" / "python" / "triton_python_backend_stub"
        return _checked(named, own_stub, (python_libraries, named / "lib"), str(named))
    _check_platform()
    spec = find_spec("pytriton")  # without importing it: that would configure logging
    if spec is None or spec.origin is None:
        raise StartError(f"the wheel {WHEEL}, which carries tritonserver, is not installed: run make setup")
    package = Path(spec.origin).parent
    stub = package / "tritonserver" / "python_backend_stubs" / MINOR / "triton_python_backend_stub"
    libraries = (python_libraries, package.parent / "nvidia_pytriton.libs")
    return _checked(package / "tritonserver", stub, libraries, metadata.version(WHEEL))


def _checked(root: Path, stub: Path, libraries: tuple[Path, ...], version: str) -> Installation:
    installation = Installation(root / "bin" / "tritonserver", root / "backends" / "python", stub, libraries, version)
    for path in (installation.binary, installation.python_backend, installation.stub):
        if not path.exists():
            raise StartError(f"{path} is missing: {root} has no tritonserver for Python {MINOR}")
    _check_libpython(libraries[0])
    return installation


def _check_platform() -> None:
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise StartError(
            f"the bundled tritonserver runs on Linux x86-64 only, this is {sys.platform} {platform.machine()}: "
            "use the container image or --triton"
        )
    name, version = platform.libc_ver()
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if name != "glibc" or numbers < GLIBC:
        raise StartError(
            f"the bundled tritonserver needs glibc >= {GLIBC[0]}.{GLIBC[1]}, this is {name or 'another libc'} "
            f"{version}: use the container image or --triton"
        )


def _check_libpython(folder: Path) -> None:
    """Refuse a Python without its shared library, which some distributions package separately."""
    name = f"libpython{MINOR}.so.1.0"
    if (folder / name).exists():
        return
    try:
        ctypes.CDLL(name)
    except OSError:
        raise StartError(
            f"{name} is missing, and tritonserver's Python processes need it: install it "
            f"(Debian and Ubuntu: apt-get install libpython{MINOR}) or use a Python built with --enable-shared"
        ) from None


def warn() -> None:
    """Print at setup why a start would fail."""
    try:
        find(None)
    except StartError as error:
        print(f"covey: the server will not start here: {error}", file=sys.stderr)

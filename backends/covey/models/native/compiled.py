"""The native runtime's compiled code: where it is kept, and the child process that compiles it.

A compiler that crashes, hangs or is killed ends only that child. Its last line becomes the logged reason for PyTorch as
the fallback. This file imports no Numba, because the launcher uses it.

    variant     embedding    keys, values, activations
    bfloat16    2 bytes      bfloat16
    mixed       2 bytes      float32
    float32     4 bytes      float32
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from covey.contracts.errors import SettingError
from covey.models.native.architecture import EMBEDDING, Architecture
from covey.process import cpu, interpreter
from covey.process.private import kept_folder, private_folder

BFLOAT16, MIXED, FLOAT32 = VARIANTS = ("bfloat16", "mixed", "float32")
USUAL = (BFLOAT16, MIXED)  # the variants for checkpoints in bfloat16
SECONDS = 240.0  # timeout of compiling within a load, which Triton ends after 300 s
PATIENT_SECONDS = 900.0  # its timeout before a server is started: a minute's work, on half a core or less
COMPILER = ("-m", "covey.models.native.compiler")
FOLDER_VARIABLE = "COVEY_COMPILED"  # tells the child its parent's folder


def folder() -> Path:
    """Return the folder of compiled code: next to these files, else in the launcher's private folder, else a temporary
    one. Its name depends on all that the code depends on: these files, their place, and the compiler's versions. If the
    files are read-only, as in a container's image, code that was compiled next to them is copied."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named)
    here, kept = Path(__file__).parent, kept_folder("numba")
    made_by = f"{here} {metadata.version('numba')} {metadata.version('llvmlite')}".encode()
    code = hashlib.sha256(made_by + b"".join(path.read_bytes() for path in sorted(here.glob("*.py")))).hexdigest()
    name = f"compiled-{code[:16]}"
    beside = here / "__pycache__" / name
    for own in (beside, *([] if kept is None else [kept / name])):
        with contextlib.suppress(OSError, SettingError):
            if own != beside:
                private_folder(own.parents[1])  # private, because Numba runs the code in it
                if not own.exists():
                    _copy(beside, own)
            own.mkdir(mode=0o700, parents=True, exist_ok=True)
            if os.access(own, os.W_OK):
                return own
    return Path(tempfile.mkdtemp(prefix="covey-compiled-"))


def _copy(source: Path, own: Path) -> None:
    """Copy the compiled code there in one atomic step, because other processes start at the same time."""
    if not (source.is_dir() and os.access(source, os.R_OK | os.X_OK)):
        return
    own.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=own.parent))
    try:
        shutil.copytree(source, made, dirs_exist_ok=True)
        made.chmod(0o700)
        made.rename(own)
    except (OSError, shutil.Error):  # another process was first, or a file cannot be read
        shutil.rmtree(made, ignore_errors=True)


KEPT = folder()


def variant_of(of: Architecture, dtype: str) -> str:
    """Return the variant that computes a model in this dtype."""
    if dtype != FLOAT32:
        return BFLOAT16
    return MIXED if of.weights[EMBEDDING].dtype == "BF16" else FLOAT32


def missing(variants: Iterable[str]) -> list[str]:
    """Return the variants that are not compiled for this CPU."""
    return [variant for variant in dict.fromkeys(variants) if not _mark(variant, "done").exists()]


def ensure(variants: Iterable[str], *, patient: bool = False) -> str:
    """Compile those of the variants that are not compiled for this CPU. Return "", or why the native runtime cannot
    compute them. Processes take turns. After a failure, only a `patient` caller (a setup or a start) tries again."""
    if platform.machine() == "x86_64" and not {"avx2", "fma"} <= cpu.features():
        return f"it needs AVX2, which {cpu.label()} lacks"
    wanted = missing(variants)
    if not wanted:
        return ""
    try:
        with (KEPT / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            failed = {variant: _mark(variant, "failed") for variant in missing(wanted)}
            if patient:
                for mark in failed.values():
                    mark.unlink(missing_ok=True)
            wanted = [variant for variant, mark in failed.items() if not mark.exists()]
            _compile(wanted, PATIENT_SECONDS if patient else SECONDS)
            return next((mark.read_text() for mark in failed.values() if mark.exists()), "")
    except OSError as error:
        return f"cannot keep compiled code: {error}"


def _mark(variant: str, word: str) -> Path:
    return KEPT / f"{variant} {cpu.key()}.{word}"


def _compile(variants: list[str], seconds: float) -> None:
    """Compile each variant in its own process, and leave a file with the outcome."""
    until, marks = time.monotonic() + seconds, {variant: _mark(variant, "said") for variant in variants}
    begun = {}
    for variant, said in marks.items():
        with said.open("w") as output:
            words = [interpreter.python(), *COMPILER, variant]
            own = os.environ | {FOLDER_VARIABLE: str(KEPT)}
            begun[variant] = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=own)
    for variant, process in begun.items():
        try:
            status: int | None = process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = None
        said = marks[variant]
        if status == 0:
            said.rename(_mark(variant, "done"))
        else:
            said.write_text(_reason(status, seconds, said.read_text(errors="replace")))
            said.rename(_mark(variant, "failed"))


def _reason(status: int | None, seconds: float, said: str) -> str:
    """Return in one line how the compiler ended, and its last line of output."""
    if status is None:
        how = f"had not ended after {seconds:.0f} s"
    else:
        how = f"was ended by {_named(-status)}" if status < 0 else f"failed with status {status}"
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")
    return f"the compiler for {cpu.label()} {how}" + (f": {last}" if last else "")


def _named(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no name
        return f"signal {number}"

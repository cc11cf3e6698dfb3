"""Which drafter: MetaSD's Table 3 in small, policies that choose drafters beside each drafter alone.

Two parts, by `--part`: `real`, the bundled models behind the real server (`drafters_real.py`), which is the default,
and `emulated`, a 7B pair with the paper's acceptance in virtual time (`drafters_emulated.py`).
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from covey.errors import SettingError
from covey.types import JsonDict
from loadtest.bench import drafters_emulated, drafters_real
from loadtest.bench.session import Session

REAL, EMULATED = "real", "emulated"


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    parts = session.wanted.parts or (REAL,)
    unknown = set(parts) - {REAL, EMULATED}
    if unknown:
        raise SettingError(f"--part: got {unknown.pop()!r}, allowed: {REAL}, {EMULATED}")
    real, emulated = drafters_real.Measured(), drafters_emulated.Measured()
    session.summarise = lambda: (
        (real.summary() if REAL in parts else {}) | ({"emulated_pair": emulated.summary()} if EMULATED in parts else {})
    )
    if EMULATED in parts:
        drafters_emulated.run(session, emulated)
    if REAL in parts:
        drafters_real.run(session, real)


def show(result: JsonDict, console: Console, picture: Path) -> None:
    """The tables, and a picture of each part."""
    if "emulated_pair" in result:
        drafters_emulated.show(result["emulated_pair"], console, picture.with_stem(f"{picture.stem}-emulated"))
    if "c1" in result:
        drafters_real.show(result, console, picture)

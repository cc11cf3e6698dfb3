"""Which drafter: MetaSD's Table 3 in small, policies that choose drafters beside each drafter alone.

Three parts, by `--part`: `real`, the bundled models behind the real server (`drafters_real.py`), which is the default;
`emulated`, a 7B pair with the paper's acceptance in virtual time (`drafters_emulated.py`); and `rewards`, what the
rewards look like that policies learn from (`drafters_rewards.py`), which `--full` measures too.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from covey.errors import SettingError
from covey.types import JsonDict
from loadtest.bench import drafters_emulated, drafters_real, drafters_rewards
from loadtest.bench.session import FULL, Session

REAL, EMULATED, REWARDS = "real", "emulated", "rewards"


def run(session: Session) -> None:
    """Measure; results go into the session as they come."""
    parts = session.wanted.parts or ((REAL, REWARDS) if session.wanted.size == FULL else (REAL,))
    unknown = set(parts) - {REAL, EMULATED, REWARDS}
    if unknown:
        raise SettingError(f"--part: got {unknown.pop()!r}, allowed: {REAL}, {EMULATED}, {REWARDS}")
    real, emulated, rewards = drafters_real.Measured(), drafters_emulated.Measured(), drafters_rewards.Measured()

    def summary() -> JsonDict:
        found = real.summary() | rewards.summary() | {"emulated_pair": emulated.summary()}
        return {key: value for key, value in found.items() if value}

    session.summarise = summary
    if EMULATED in parts:
        drafters_emulated.run(session, emulated)
    if REWARDS in parts:
        drafters_rewards.run(session, rewards)
    if REAL in parts:
        drafters_real.run(session, real)


def show(result: JsonDict, console: Console, picture: Path) -> None:
    """The tables, and a picture of each part."""
    if "emulated_pair" in result:
        drafters_emulated.show(result["emulated_pair"], console, picture.with_stem(f"{picture.stem}-emulated"))
    if "rewards" in result:
        drafters_rewards.show(result, console, picture.with_stem(f"{picture.stem}-rewards"))
    if "c1" in result:
        drafters_real.show(result, console, picture)

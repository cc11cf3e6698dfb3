"""`covey profiles`: check every profile, or explain one: each setting, its value, its default, where it comes from.

The server's package reads profiles; this command may be installed without it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console

from covey_client.commands import flags
from covey_client.errors import InvalidRequest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from pathlib import Path

    from covey.contracts.profile import Profile

BROKEN = 1  # exit status of a check that found something


def add(subparsers: flags.Subparsers) -> None:
    parser = subparsers.add_parser("profiles", help="check or explain deployment profiles", description="Profiles.")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    check = actions.add_parser("check", help="validate profiles", description="Validate profiles.")
    check.add_argument("names", nargs="*", metavar="NAME", help="names or paths (default: every profile)")
    check.set_defaults(run=run_check)
    explain = actions.add_parser(
        "explain", help="every setting, its meaning and origin", description="Print every setting of one profile."
    )
    explain.add_argument("name", metavar="NAME", help="name or path")
    explain.add_argument("--json", action="store_true")
    explain.set_defaults(run=run_explain)


def _refuse_without_server() -> None:
    try:
        import covey  # noqa: F401
    except ModuleNotFoundError:
        raise InvalidRequest("only the server reads profiles: run this where the package covey is installed") from None


def run_check(given: argparse.Namespace) -> int:
    _refuse_without_server()
    from covey.contracts import profile
    from covey.contracts.errors import SettingError
    from covey.launcher import Options, preflight
    from covey.launcher.default_model import serves_test_pair

    names = given.names or sorted(path.stem for path in profile.profiles_folder().glob("*.toml"))
    if not names:
        raise InvalidRequest(f"no profiles in {profile.profiles_folder()}; COVEY_PROFILES names another folder")
    console = Console(soft_wrap=True, highlight=False)
    broken = 0
    for name in names:
        try:
            found = profile.load(name)
            preflight.models(Options(profile=name))
        except SettingError as error:
            broken += 1
            console.print(f"[red]wrong[/red]  {name}", end="  ")
            console.print(str(error), markup=False)
        else:
            pair = "no target.folder: it serves the small test pair; MODEL= names another"
            console.print(f"[green]ok[/green]     {found.name}", end="  ")
            console.print(pair if serves_test_pair(name, found) else found.description, markup=False)
    return BROKEN if broken else 0


def run_explain(given: argparse.Namespace) -> int:
    _refuse_without_server()
    from covey.contracts import profile
    from covey.contracts.errors import SettingError

    try:
        path, found = profile.find(given.name), profile.load(given.name)
    except SettingError as error:
        raise InvalidRequest(str(error)) from None
    rows = list(_settings(found, tomllib.loads(path.read_text(encoding="utf-8"))))
    if given.json:
        print(json.dumps({"profile": found.name, "settings": rows}))
    else:
        _print(found, path, rows)
    return 0


def _settings(section: Any, table: dict[str, Any], prefix: str = "") -> Iterator[dict[str, Any]]:
    """Yield every setting of a profile, or of a section of it, that was read from this table. Names are nested as the
    file has them, `section.key`; an origin is `default` or `file`."""
    for field in dataclasses.fields(section):
        value, name = getattr(section, field.name), prefix + field.name
        if dataclasses.is_dataclass(value):
            yield from _settings(value, table.get(field.name, {}), f"{name}.")
        elif field.default is not dataclasses.MISSING:  # the profile's name is no setting
            origin = "file" if field.name in table else "default"
            yield {
                "name": name,
                "value": value,
                "default": field.default,
                "origin": origin,
                "meaning": field.metadata["meaning"],
                "allowed": _allowed(field.metadata, field.default),
            }


def _allowed(limits: Any, default: Any) -> str:
    if limits["choices"]:
        return str(", ".join(limits["choices"]))
    if limits["low"] is not None and limits["high"] is not None:
        return f"{limits['low']:,} to {limits['high']:,}"
    return {bool: "true or false", tuple: "a list"}.get(type(default), "")


def _print(found: Profile, path: Path, rows: list[dict[str, Any]]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]{found.name}[/bold]", f"({path})")
    console.print(found.description, markup=False)
    section = ""
    for row in rows:
        table, _, key = row["name"].rpartition(".")
        if table != section:
            section = table
            console.print(f"\n[{section}]", style="bold", markup=False)
        if row["name"] != "description":
            style = "green" if row["origin"] == "file" else ""
            console.print(f"{key} = {shown(row['value'])}", style=style, markup=False, end="  ")
            usual = "" if row["default"] == row["value"] else f", default {shown(row['default'])}"
            console.print(f"({row['origin']}{usual})", style="dim", markup=False)
            allowed = f" [{row['allowed']}]" if row["allowed"] else ""
            console.print(f"    {row['meaning']}{allowed}", style="dim", markup=False)


def shown(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False)

"""Offers load for a while, then writes a report, `python -m loadtest`. The exit status is 0 if it ran, 1 if it was
interrupted and 2 if it could not run."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> int:
    from gevent import monkey

    monkey.patch_all()  # before any import that opens sockets

    from covey.contracts.errors import SettingError
    from loadtest import options, records

    given = options.command_line().parse_args(arguments)
    try:
        earlier = records.load(given.compare) if given.compare else None
        if given.report:
            return _report(given.report, earlier)
        plan = options.plan(given, seconds=given.seconds, grace=given.grace)
        from loadtest.run import run

        folder = records.unused(given.out / (given.name or time.strftime("%Y%m%d-%H%M%S")))
        if given.beside_plain:
            given.speculation = "off"
            plain = records.unused(folder.with_name(f"{folder.name}-plain"))
            if not run(options.plan(given, seconds=given.seconds, grace=given.grace), plain):
                return _report(plain, None) or 1
            earlier = records.load(plain)
        complete = run(plan, folder)
        _report(folder, earlier)
    except SettingError as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 2
    return 0 if complete else 1


def _report(folder: Path, earlier: object) -> int:
    from loadtest import records, report

    assert earlier is None or isinstance(earlier, records.RecordedRun)
    run = records.load(folder)
    path = report.write(run, earlier)
    report.show(run, earlier)
    print(f"report: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

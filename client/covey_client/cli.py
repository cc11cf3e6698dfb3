"""The command `covey`. Errors are one line on stderr; the exit status gives their kind.

0 done, 1 the server failed, 2 wrong usage or request, 3 overloaded, 4 deadline, 5 no connection, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from covey_client.commands import drafters, generate, plan_star, profiles, status
from covey_client.errors import (
    Cancelled,
    ConnectionLost,
    CoveyClientError,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
)
from covey_client.printable import printable

COMMANDS = (
    generate,
    status,
    drafters,
    profiles,
    plan_star,
)  # each adds its subparser, whose default `run` takes the parsed arguments
STATUS: dict[type[CoveyClientError], int] = {
    InvalidRequest: 2,
    Overloaded: 3,
    DeadlineExceeded: 4,
    ConnectionLost: 5,
    Cancelled: 130,
}
NO_SERVER = " (is a server running, and ready? `make serve` starts one; its address is an option, or COVEY_URL)"
INTERRUPTED = 130
BROKEN_PIPE = 141


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    whole = argparse.ArgumentParser(prog="covey", description="Talk to a Covey server.")
    subparsers = whole.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(subparsers)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    given = parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = given.run
    try:
        return run(given)
    except CoveyClientError as error:
        hint = NO_SERVER if isinstance(error, ConnectionLost) else ""
        said = "\n".join(map(printable, str(error).split("\n")))
        print(f"covey: {said}{hint}", file=sys.stderr)
        return STATUS.get(type(error), 1)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:  # of our own output: a full disk
        print(f"covey: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())

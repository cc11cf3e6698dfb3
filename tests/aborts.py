"""A test whose tritonserver crashed is run again, on the server started again.

Where a model's process is killed just as it holds a lock that it shares with tritonserver, tritonserver ends, too, by
an exception that nobody there catches. A launcher starts it again then (`tests/launcher/test_server_live.py`); most
tests' servers have none.
"""

from __future__ import annotations

import threading
import time

import pytest

from covey.launcher import Server

THROWN = "boost::interprocess::lock_exception"  # what it says last, in its log; any other end fails the test
SECONDS_TO_END = 3.0  # it writes where it was, first
RUNS = 4  # of a test at most


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    servers = {id(each): each for each in pyfuncitem.funcargs.values() if isinstance(each, Server)}
    if not servers:
        return None  # pytest calls it
    test, arguments = pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    report, raised = threading.excepthook, list[threading.ExceptHookArgs]()
    threading.excepthook = raised.append
    try:
        for left in reversed(range(RUNS)):
            try:
                test(**arguments)
                break
            except Exception:
                crashed = _crashed(list(servers.values())) if left else []
                if not crashed:
                    raise
            raised.clear()
            for server in crashed:
                server.kill()
                server.start()
    finally:
        threading.excepthook = report
        for each in raised:
            report(each)
    return True


def _crashed(servers: list[Server]) -> list[Server]:
    until = time.monotonic() + SECONDS_TO_END
    while all(each.running for each in servers) and time.monotonic() < until:
        time.sleep(0.1)
    return [each for each in servers if not each.running and THROWN in each.log_text()]

"""A test whose tritonserver crashed is run once more, on the server started again.

Where a model's process is killed just as it holds a lock that it shares with tritonserver, tritonserver ends, too, by
an exception that nobody there catches (`boost::interprocess::lock_exception`). A launcher starts it again then
(`tests/server/test_server_live.py`); the servers of most tests have none.
"""

from __future__ import annotations

import pytest

from covey.server import Server, ServerDied

CRASHES = ("SIGABRT", "SIGSEGV")  # nobody here sends these


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    servers = {id(each): each for each in pyfuncitem.funcargs.values() if isinstance(each, Server)}
    if not servers:
        return None  # pytest calls it
    test, arguments = pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    try:
        test(**arguments)
    except Exception:
        crashed = [each for each in servers.values() if _crashed(each)]
        if not crashed:
            raise
        for server in crashed:
            server.kill()
            server.start()
        test(**arguments)
    return True


def _crashed(server: Server) -> bool:
    try:
        server.check()
    except ServerDied as error:
        return any(name in str(error).partition(";")[0] for name in CRASHES)
    return False

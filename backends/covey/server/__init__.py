"""Starts and stops tritonserver with Covey's backends: `with Server(Options(...)) as server: server.http_url`.

options.py says what can be asked, installation.py where the binary is, backend_dir.py what Triton's backend directory
holds, preflight.py what can be known to fail before a start, process.py the life of one server.
"""

from covey.server.errors import ServerDied, StartError
from covey.server.options import FREE, FREE_PORTS, Options
from covey.server.process import Server

__all__ = ["FREE", "FREE_PORTS", "Options", "Server", "ServerDied", "StartError"]

"""Starts and stops tritonserver with Covey's backends: `with Server(Options(...)) as server: server.http_url`.

options.py holds the options, installation.py finds the binary, backend_dir.py builds Triton's backend directory,
preflight.py refuses starts that would fail, and process.py runs one server from start to stop.
"""

from covey.server.errors import ServerDied, StartError
from covey.server.options import FREE, FREE_PORTS, Options
from covey.server.process import Server

__all__ = ["FREE", "FREE_PORTS", "Options", "Server", "ServerDied", "StartError"]

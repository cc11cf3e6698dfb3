"""Starts and stops tritonserver with Covey's backends: `with Server(Options(...)) as server: server.http_url`.

options.py holds the options, installation.py finds the binary, backend_dir.py builds Triton's backend directory,
preflight.py refuses starts that would fail, and process.py runs one server from start to stop.
"""

from covey.launcher.errors import ServerDied, StartError
from covey.launcher.options import FREE, FREE_PORTS, Options
from covey.launcher.process import Server

__all__ = ["FREE", "FREE_PORTS", "Options", "Server", "ServerDied", "StartError"]

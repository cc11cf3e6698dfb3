"""Runs the front of one server, `python -m covey.front`, until it is told to stop. The launcher starts it.

SIGUSR1 drains: the front refuses new requests, completes those in flight, and then stays to refuse more. The launcher
sends it when it drains its server. SIGTERM ends the process; if the launcher did not send it, the launcher starts a new
front.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import resource
import signal
import sys
from collections.abc import Iterator, Sequence

import uvicorn

from covey.contracts import profile
from covey.contracts.errors import SettingError
from covey.front import grpc_service, http_app
from covey.front.admission import Admission
from covey.front.gateway import Gateway
from covey.front.http_protocol import HEADER_BYTES, bounded
from covey.front.log import to_stderr
from covey.front.upstream import Upstream

CLOSING_SECONDS = 1.0  # to write the last answers
DESCRIPTORS = 1 << 16
log = logging.getLogger("covey.front")


async def serve(wanted: argparse.Namespace) -> None:
    own, names = profile.load(wanted.profile), wanted.served_model_name
    gateway = Gateway(own, wanted.upstream, wanted.upstream_metrics, wanted.deaths, wanted.folder, names)
    calls = grpc_service.server(gateway)
    host = f"[{wanted.host}]" if ":" in wanted.host else wanted.host
    calls.add_insecure_port(f"{host}:{wanted.grpc_port}")
    http = _Http(
        uvicorn.Config(
            http_app.app(gateway),
            host=wanted.host,
            port=wanted.http_port,
            http=bounded(gateway.admission, gateway.settings),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            backlog=256,
            h11_max_incomplete_event_size=HEADER_BYTES,
            timeout_graceful_shutdown=int(CLOSING_SECONDS),
        )
    )
    ending = asyncio.Event()

    def drain() -> None:
        gateway.admission.draining = True

    def end() -> None:
        drain()
        ending.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, drain)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end)
    await gateway.upstream.look()  # the first request must find the server ready
    await calls.start()
    watching = asyncio.ensure_future(_watch(gateway.upstream, gateway.admission))
    serving = asyncio.ensure_future(http.serve())
    stopping = asyncio.ensure_future(ending.wait())
    await asyncio.wait((serving, stopping, watching), return_when=asyncio.FIRST_COMPLETED)
    http.should_exit = True
    watching.cancel()
    await calls.stop(CLOSING_SECONDS)
    await serving
    gateway.workers.close()
    await gateway.upstream.close()
    gateway.spans.close()


async def _watch(upstream: Upstream, admission: Admission) -> None:
    """Watch the server until a drain's last answer has ended, then disconnect from it: an open connection tells the
    launcher that a client still reads an answer. Never returns."""
    await upstream.watch(lambda: admission.drained)
    await upstream.close()
    await asyncio.Event().wait()


class _Http(uvicorn.Server):
    """A uvicorn server that leaves signals to this module."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m covey.front", description="The public face of a server.")
    parser.add_argument("--host", required=True)
    parser.add_argument("--http-port", type=int, required=True)
    parser.add_argument("--grpc-port", type=int, required=True)
    parser.add_argument("--upstream", required=True, metavar="HOST:PORT", help="tritonserver's gRPC port")
    parser.add_argument("--upstream-metrics", required=True, metavar="HOST:PORT")
    parser.add_argument("--folder", required=True, help="of the target's files")
    parser.add_argument("--served-model-name", action="append", default=[], metavar="NAME")
    parser.add_argument("--deaths", required=True, type=int, metavar="FD", help="where the launcher writes them")
    parser.add_argument("--profile", default=profile.DEFAULT_PROFILE)
    to_stderr()
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it would log a warning for each bad request
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        asyncio.run(serve(parser.parse_args(arguments)))
    except SettingError as error:
        print(f"covey: the front cannot start: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Connects to a server's HTTP port, and makes one plain exchange with it for questions about the server itself."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping

from covey_client.address import NOT_HTTP, Address
from covey_client.errors import ConnectionLost, ServerError


def connection(address: Address, context: ssl.SSLContext | None, seconds: float | None) -> http.client.HTTPConnection:
    """Return a connection that is made when it is first used. `context` is the address' own."""
    if context is None:
        return http.client.HTTPConnection(address.host, address.port, timeout=seconds)
    return http.client.HTTPSConnection(address.host, address.port, timeout=seconds, context=context)


def ask(
    address: Address, method: str, path: str, *, headers: Mapping[str, str], seconds: float, body: bytes | None = None
) -> tuple[int, bytes]:
    """Return status and body of the answer. Raises ConnectionLost if nobody answers."""
    asked = connection(address, address.ssl_context(), seconds)
    try:
        asked.request(method, path, body=body, headers={**headers, **address.headers})
        answer = asked.getresponse()
        return answer.status, answer.read()
    except OSError as error:
        raise ConnectionLost(f"{address.target}: {error}") from None
    except http.client.HTTPException as error:
        raise ServerError(f"{address.target} {NOT_HTTP} [{type(error).__name__}]") from None
    finally:
        asked.close()

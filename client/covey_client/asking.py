"""Makes one plain exchange with a server's HTTP port, for questions about the server itself."""

from __future__ import annotations

import http.client
from collections.abc import Mapping

from covey_client.address import NOT_HTTP, Address
from covey_client.errors import ConnectionLost, ServerError


def ask(
    address: Address, method: str, path: str, *, headers: Mapping[str, str], seconds: float, body: bytes | None = None
) -> tuple[int, bytes]:
    """Return status and body of the answer. Raises ConnectionLost if there is no answer."""
    context = address.ssl_context()
    asked = (
        http.client.HTTPConnection(address.host, address.port, timeout=seconds)
        if context is None
        else http.client.HTTPSConnection(address.host, address.port, timeout=seconds, context=context)
    )
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

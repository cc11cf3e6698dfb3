"""Every error Covey raises on purpose.

CoveyError
 +- SettingError         a profile, model folder or command line that cannot work; stops a start
 |   +- UnsupportedModel a model feature that this runtime does not serve, by name
 +- RequestError         the caller's fault; travels to the client with its code
 |   +- BadField         INVALID_ARG: names the field, the value and what is allowed
 |   +- Overloaded       UNAVAILABLE: queue full, draining, or an objective that cannot be met now
 +- PortError            a model behind a port failed; the engine decides what that costs
     +- PortTimeout      it did not answer in time
     +- StubDead         its process is gone
"""

from __future__ import annotations

MOST_WORDS, MOST_LETTERS = 400, 400  # of a message, and of one of its words: a path may be long


class CoveyError(Exception):
    """Base of all errors raised on purpose."""


class SettingError(CoveyError):
    """A setting that cannot work; the message says what to change, in one line whatever a stranger's file held."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(one_line(word) for word in message.split(" ")[:MOST_WORDS]))


class UnsupportedModel(SettingError):
    """A model feature that this runtime does not serve."""


class RequestError(CoveyError):
    """A request that will not be served; `code` is Triton's name of the error."""

    code = "INTERNAL"


class BadField(RequestError):
    """Raised where one field of a request is wrong."""

    code = "INVALID_ARG"

    def __init__(self, field: str, value: object, allowed: str) -> None:
        shown = repr(value)
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{field}: got {shown}, allowed: {allowed}")
        self.field = field


class Overloaded(RequestError):
    """The server takes no more work now."""

    code = "UNAVAILABLE"


class PortError(CoveyError):
    """A model behind a port failed."""


class PortTimeout(PortError):
    """A model behind a port did not answer in time."""


class StubDead(PortError):
    """The process of a model behind a port is gone."""


def one_line(text: str, most: int = MOST_LETTERS) -> str:
    """Return text that anybody may have written, for people: short, and without what a terminal would obey."""
    cut = text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]}"
    return cut if cut.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in cut)

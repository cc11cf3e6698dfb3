"""Every error that Covey raises on purpose.

CoveyError
 +- SettingError         A profile, model folder or command line cannot work; this stops a start.
 |   +- UnsupportedModel This runtime does not serve a feature of the model, which it names.
 +- RequestError         The caller's fault; it travels to the client with its code.
 |   +- BadField         INVALID_ARG: names the field, the value and what is allowed.
 |   +- Overloaded       UNAVAILABLE: queue full, draining, starting, or a fault after which a retry may succeed.
 +- PortError            A model called through a port failed; the engine decides on the consequences.
     +- PortTimeout      It did not answer in time.
     +- StubDead         Its process is gone.
"""

from __future__ import annotations

MOST_WORDS, MOST_LETTERS = 400, 400  # words of a message, letters of a word: a path may be long


class CoveyError(Exception):
    """Base of all errors that are raised on purpose."""


class SettingError(CoveyError):
    """A setting that cannot work. The message says in one line what to change, even if an untrusted file is quoted."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(one_line(word) for word in message.split(" ")[:MOST_WORDS]))


class UnsupportedModel(SettingError):
    """A model feature that this runtime does not serve."""


class RequestError(CoveyError):
    """A request that is refused. `code` is Triton's name of the error."""

    code = "INTERNAL"


class BadField(RequestError):
    """One field of a request is wrong."""

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
    """A model called through a port failed."""


class PortTimeout(PortError):
    """A model called through a port did not answer in time."""


class StubDead(PortError):
    """The process of a model called through a port is gone."""


def one_line(text: str, most: int = MOST_LETTERS) -> str:
    """Return untrusted text for people: short, on one line, without control characters."""
    cut = text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]}"
    return cut if cut.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in cut)

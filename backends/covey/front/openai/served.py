"""The models that a caller may name: `covey`, or its served names, and each of several targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from covey.front.failures import NotServed, refused
from covey.front.gateway import Gateway
from covey.front.openai.texts import Texts


@dataclass(frozen=True)
class ServedModel:
    name: str
    target: str  # "" where the server chooses
    found: Texts | None

    @property
    def texts(self) -> Texts:
        """Return the texts of the target that answers. Raises InvalidRequest where that is not known yet."""
        if self.found is None:
            raise refused("model", self.name, "a target's name: tokens and templates are a target's own")
        return self.found


def names(gateway: Gateway) -> list[str]:
    return [*gateway.names, *(name for name in gateway.texts if name)]


def served(gateway: Gateway, name: Any, target: Any = None) -> ServedModel:
    """Return the model of that name; `target` is the request's own field. Raises NotServed or InvalidRequest."""
    allowed, targets = names(gateway), [name for name in gateway.texts if name]
    if name is None:
        name = allowed[0]
    if name not in allowed:
        raise NotServed(str(refused("model", name, ", ".join(allowed))), "model")
    if target in (None, ""):
        target = "" if name in gateway.names else name
    if target not in ("", *targets):
        raise refused("target", target, ", ".join(targets) or "none: this server has one alone")
    if name not in (*gateway.names, target):
        raise refused("target", target, f"{name!r}, the model that is asked for")
    return ServedModel(str(name), str(target), gateway.texts.get(str(target)))

"""The models that a caller may name: `covey`, and each of several targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from covey.front.door import Door
from covey.front.failures import NotServed, refused
from covey.front.openai.texts import Texts
from covey_client.wire import MODEL


@dataclass(frozen=True)
class Model:
    name: str
    target: str  # "" where the server chooses
    found: Texts | None

    @property
    def texts(self) -> Texts:
        """Of the target that answers. Raises InvalidRequest where that is not known yet."""
        if self.found is None:
            raise refused("model", self.name, "a target's name: tokens and templates are a target's own")
        return self.found


def names(door: Door) -> list[str]:
    return [MODEL, *(name for name in door.texts if name)]


def served(door: Door, name: Any, target: Any = None) -> Model:
    """The model of that name; `target` is what the request says beside it."""
    allowed = names(door)
    if name is None:
        name = MODEL
    if name not in allowed:
        raise NotServed(str(refused("model", name, ", ".join(allowed))), "model")
    if target in (None, ""):
        target = "" if name == MODEL else name
    if target not in ("", *allowed[1:]):
        raise refused("target", target, ", ".join(allowed[1:]) or "none: this server has one alone")
    if name not in (MODEL, target):
        raise refused("target", target, f"{name!r}, the model that is asked for")
    return Model(str(name), str(target), door.texts.get(str(target)))

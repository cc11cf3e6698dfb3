"""The models that a caller may name: `covey`, or the names that were given for it, and each of several targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from covey.front.door import Door
from covey.front.failures import NotServed, refused
from covey.front.openai.texts import Texts


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
    return [*door.names, *(name for name in door.texts if name)]


def served(door: Door, name: Any, target: Any = None) -> Model:
    """The model of that name; `target` is what the request says beside it."""
    allowed, targets = names(door), [name for name in door.texts if name]
    if name is None:
        name = allowed[0]
    if name not in allowed:
        raise NotServed(str(refused("model", name, ", ".join(allowed))), "model")
    if target in (None, ""):
        target = "" if name in door.names else name
    if target not in ("", *targets):
        raise refused("target", target, ", ".join(targets) or "none: this server has one alone")
    if name not in (*door.names, target):
        raise refused("target", target, f"{name!r}, the model that is asked for")
    return Model(str(name), str(target), door.texts.get(str(target)))

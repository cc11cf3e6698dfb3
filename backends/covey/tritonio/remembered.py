"""Numbers that outlive a model's process but not its server, by name, in a file of the server's private folder
(`covey.tritonio.link`)."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping

from covey.contracts.errors import SettingError
from covey.process.private import checked, private_folder
from covey.tritonio.link import address
from covey_client import files
from covey_client.running import started

log = logging.getLogger("covey.memory")


class Remembered:
    """The numbers of one model that outlive its process, but not its server."""

    def __init__(self, model: str) -> None:
        server = os.getppid()
        self._path = address(f"{model}.json", server)
        self._server = f"{server} {started(server)}"  # another server may get its process id

    def recall(self) -> dict[str, int]:
        """Return what was remembered of this server; empty if there is nothing, or nothing that can be read."""
        try:
            checked(self._path.parent)
            told = json.loads(self._path.read_text(encoding="utf-8"))
            return {str(name): int(number) for name, number in told["numbers"].items()} if self._is_own(told) else {}
        except (OSError, SettingError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return {}

    def remember(self, numbers: Mapping[str, int]) -> None:
        """Remember these numbers in place of the others. A failure is logged: it costs nothing until this process
        dies."""
        try:
            private_folder(self._path.parent)
            files.replace(self._path, json.dumps({"server": self._server, "numbers": dict(numbers)}))
        except (OSError, SettingError) as error:
            log.warning("what drafters held at first is forgotten if this process dies: %s", error)

    def _is_own(self, told: Mapping[str, object]) -> bool:
        return told["server"] == self._server

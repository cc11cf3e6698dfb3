"""Keeps what a policy has learnt in a file, so that a restart need not learn it again.

    {"covey_learnt": 4, "policy": "covey", "target": "...", "state": {...}}

`state` is the policy's own. A file of another version, policy or target, or a damaged one, is ignored with a warning:
a planner that starts from nothing is slower for seconds, one that starts from nonsense for longer.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from typing import Protocol

from covey.contracts.errors import SettingError
from covey.contracts.types import JsonDict
from covey_client import files

log = logging.getLogger("covey.planner")

VERSION = 4
SAVE_SECONDS = 60.0


class Learner(Protocol):
    """A policy, or the planner around one."""

    def state(self) -> JsonDict | None: ...

    def restore(self, state: JsonDict) -> None: ...


class Keeper:
    """Restores from a file, then saves to it once a minute from a thread of its own, and when it ends."""

    def __init__(self, path: Path, learner: Learner, *, name: str, target: str, seconds: float = SAVE_SECONDS) -> None:
        self._path, self._learner, self._name, self._target = path, learner, name, target
        self._seconds = seconds
        self._ended = threading.Event()
        self._failed = False
        if restore(path, learner, name=name, target=target):
            log.info("policy %s goes on from what %s holds", name, path)
        elif learner.state() is None:
            log.warning("speculation.state is of no use: policy %s keeps nothing across restarts", name)
        self._thread = threading.Thread(target=self._run, name="learnt", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Save a last time. Nothing may change the learner any more."""
        self._ended.set()
        self._thread.join()
        self._save()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            self._save()

    def _save(self) -> None:
        try:
            save(self._path, self._learner, name=self._name, target=self._target)
        except Exception as error:  # whatever it is, the thread goes on: what comes later may be saved
            if not self._failed:  # once: it will be so every minute
                log.warning("what policy %s has learnt cannot be saved in %s: %s", self._name, self._path, error)
            self._failed = True


def file_in(folder: str | Path, name: str) -> Path:
    """Return the file for the state of the model `name`. Raises SettingError if nothing can be written."""
    path = Path(folder) / f"{name}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise PermissionError("not writable")
    except OSError as error:
        raise SettingError(f"speculation.state: got {folder!r}, allowed: a folder to write to ({error})") from None
    return path


def save(path: str | Path, policy: Learner, *, name: str, target: str) -> bool:
    """Write atomically; False when the policy keeps nothing. Raises OSError when it cannot be written."""
    state = policy.state()
    if state is None:
        return False
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"covey_learnt": VERSION, "policy": name, "target": target, "state": state}, allow_nan=False)
    files.replace(path, text)
    return True


def restore(path: str | Path, policy: Learner, *, name: str, target: str) -> bool:
    """Restore the policy from the file, and return whether it did; a missing file is no reason to warn."""
    path = Path(path)
    try:
        learnt = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(learnt, dict) or learnt.get("covey_learnt") != VERSION:
            raise ValueError(f"not a file of version {VERSION}")
        for key, expected in (("policy", name), ("target", target)):
            if learnt.get(key) != expected:
                raise ValueError(f"learnt for {key} {learnt.get(key)!r}, not {expected!r}")
        policy.restore(learnt["state"])
    except FileNotFoundError:
        return False
    except Exception as error:  # a file may hold anything, and a policy may stumble over any of it
        log.warning("learnt state in %s is ignored: %s: %s", path, type(error).__name__, error)
        return False
    return True

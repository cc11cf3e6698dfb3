"""Reads tritonserver's log: which models are loaded, and why others are not. Knows no process."""

from __future__ import annotations

import re

_LOADED = re.compile(r"successfully loaded '([^']+)'")
_BEGUN = re.compile(r"TRITONBACKEND_ModelInstanceInitialize: (\S+?)(?:_\d+){2} ")
_FAILED = re.compile(r"failed to load '([^']+)' version \d+: (.*)")
_POLLED = re.compile(r"load failed for model '([^']+)': (.*)")
_CODE = re.compile(r"^(Internal|Invalid argument|Not found|Unavailable|Unsupported|Unknown|Already exists)(: | - )")
_CLASS = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|UnsupportedModel): ")
_KILLED = re.compile(r"Stub process '(\S+?)(?:_\d+){2}' is not healthy|Timed out occurred while waiting for the stub")
_FATAL = re.compile(r"^error: (?:creating server: )?(.*)", re.MULTILINE)
_SERVING = re.compile(r"covey\.orchestrator: serving \S+: (.*? numerics.*? in the KV pool)")
_HARMLESS = ("CudaDriverHelper", "pinned", "CUDA driver version is insufficient")  # printed wherever there is no GPU
_LINE = re.compile(r'^E\d{4} \S+ \d+ [\w.]+:\d+\] "?(.*?)"?$', re.MULTILINE)


def begun(text: str) -> tuple[str, ...]:
    """Return the models whose first process has been started."""
    return tuple(dict.fromkeys(_BEGUN.findall(text)))


def loaded(text: str) -> tuple[str, ...]:
    """Return the loaded models in order of loading."""
    return tuple(dict.fromkeys(_LOADED.findall(text)))


def reason(text: str) -> str:
    """Return in one line why the server of this log did not start; "" if the log does not say."""
    for pattern in (_FAILED, _POLLED):
        for match in pattern.finditer(text):
            model, said = match[1], _first_line(match[2])
            if _KILLED.search(said):
                said += " (its process ended while loading: killed for want of memory?)"
            return f"model {model!r}: {said}"
    fatal = _FATAL.search(text)
    if fatal:
        return _first_line(fatal[1])
    errors = [line for line in _LINE.findall(text) if not any(word in line for word in _HARMLESS)]
    return _first_line(errors[-1]) if errors else ""


def serving(text: str) -> str:
    """Return the target's type and mode as the orchestrator last logged them; "" before that."""
    found = _SERVING.findall(text)
    return str(found[-1]) if found else ""


def refused(text: str) -> bool:
    """Return whether a model gave its own reason not to load, and no process was lost. It would fail again."""
    return any(pattern.search(text) for pattern in (_FAILED, _POLLED)) and not lost_process(text)


def lost_process(text: str) -> bool:
    """Return whether a model failed to load because its process ended without reporting an error."""
    return any(_KILLED.search(match[2]) for pattern in (_FAILED, _POLLED) for match in pattern.finditer(text))


def tail(text: str) -> str:
    """Return the last 15 lines that are not tables."""
    kept = [line for line in text.splitlines() if line.strip() and line[0] not in "|+"]
    return "\n".join(kept[-15:])


def _first_line(message: str) -> str:
    """Return the message without Triton's code, Python's class and the stack trace."""
    line = re.split(r"\\n|\n", message)[0].strip().rstrip('";').strip()
    return _CLASS.sub("", _CODE.sub("", line))

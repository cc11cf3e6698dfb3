"""The memory that this process alone holds of a device: what the device would have back if the process ended."""

from __future__ import annotations

from pathlib import Path

ROLLUP = Path("/proc/self/smaps_rollup")


def private_bytes() -> int:
    """Return the bytes of the machine's memory that are this process' alone. Pages that it shares, libraries' most of
    all, stay as long as others have them."""
    lines = (line.split() for line in ROLLUP.read_text().splitlines()[1:])
    return sum(int(line[1]) << 10 for line in lines if line[0].startswith("Private_"))

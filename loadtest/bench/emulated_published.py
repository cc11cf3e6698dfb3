"""What Nightjar (v2) printed for its 7B and 13B pairs: Tables 4 (tokens per second) and 5 (mean latency, ms)."""

from __future__ import annotations

from covey.types import JsonDict

DATASETS = ("Alpaca", "ShareGPT", "SpecBench")
NAMES = {  # theirs -> ours; SD drafts a fixed length, 3 in their example
    "Nightjar": "nightjar",
    "BanditSpec": "banditspec",
    "DSD": "dsd",
    "TETRIS": "tetris",
    "SD": "fixed:3",
    "w/o SD": "off",
}
THROUGHPUT = {
    "emulated-7b": {
        "Nightjar": (2102.73, 3734.23, 3326.20),
        "BanditSpec": (1860.74, 3428.75, 2631.43),
        "DSD": (2044.40, 3614.65, 2789.51),
        "TETRIS": (1875.91, 3597.21, 2974.14),
        "SD": (1920.63, 3593.36, 3044.80),
        "w/o SD": (2072.38, 3653.61, 3207.28),
    },
    "emulated-13b-40g": {
        "Nightjar": (721.23, 1729.68, 1061.82),
        "BanditSpec": (679.82, 1383.81, 763.15),
        "DSD": (603.32, 1244.96, 692.01),
        "TETRIS": (702.65, 1628.86, 985.40),
        "SD": (628.47, 1689.53, 964.02),
        "w/o SD": (438.13, 1290.04, 673.48),
    },
}
LATENCY_MS = {
    "emulated-7b": {
        "Nightjar": (8868.17, 6534.76, 7618.85),
        "BanditSpec": (12340.83, 7799.63, 9288.23),
        "DSD": (9183.21, 6499.12, 8301.02),
        "TETRIS": (11734.19, 7409.62, 8789.48),
        "SD": (11110.68, 7047.49, 8567.04),
        "w/o SD": (8876.14, 6438.47, 7654.05),
    },
    "emulated-13b-40g": {
        "Nightjar": (23525.49, 8133.92, 14691.81),
        "BanditSpec": (29077.32, 9667.04, 19294.42),
        "DSD": (16212.44, 10057.72, 22361.71),
        "TETRIS": (22133.43, 8046.25, 14937.37),
        "SD": (24671.40, 8152.97, 14212.97),
        "w/o SD": (32222.49, 9350.87, 23831.74),
    },
}


def beside(pair: str) -> JsonDict | None:
    """Both tables of that pair by our policies' names; None when the paper has none."""
    if pair not in THROUGHPUT:
        return None
    return {
        NAMES[name]: {
            "throughput": dict(zip(DATASETS, THROUGHPUT[pair][name])),
            "latency_ms": dict(zip(DATASETS, LATENCY_MS[pair][name])),
        }
        for name in NAMES
    }

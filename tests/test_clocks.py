"""What decides anything reads a clock that nobody sets. The clock on the wall dates what people read.

The machine's clock cannot be set for a test: no namespace has one of its own, and everybody else's would jump too."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import covey

BACKENDS = Path(covey.__file__).parents[1]
WALL = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "strftime", "CLOCK_REALTIME"}
ALLOWED = {
    "covey/front/openai/routes.py": 1,  # `created` of the models that OpenAI's API lists
    "covey/front/openai/responses.py": 1,  # ... and of answers
    "covey/front/openai/shapes.py": 1,
    "covey/public_model/spans.py": 1,  # a trace's spans
    "covey/loop/measure.py": 1,  # says when cost curves were measured
}


def test_nothing_but_dates_is_read_from_the_clock_on_the_wall() -> None:
    found = Counter(
        str(path.relative_to(BACKENDS))
        for path in BACKENDS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in WALL
        and isinstance(node.value, ast.Name)
        and node.value.id in ("time", "datetime", "date")
    )
    assert found == ALLOWED

"""What is written from the tables of public fields is what `make generate` writes."""

from __future__ import annotations

import generate


def test_what_is_generated_is_not_stale() -> None:
    stale = [str(path.relative_to(generate.ROOT)) for path in generate.stale()]
    assert not stale, "run `make generate`"


def test_every_region_is_found() -> None:
    for path in (path for pattern in generate.FILES for path in generate.ROOT.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        assert len(generate.REGION.findall(text)) == text.count("generated: end"), path

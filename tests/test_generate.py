"""What is written from the tables of public fields is what `make generate` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

import generate


def test_what_is_generated_is_not_stale() -> None:
    stale = [str(path.relative_to(generate.ROOT)) for path in generate.stale()]
    assert not stale, "run `make generate`"


@pytest.mark.parametrize("missing", ["first", "last"])
@pytest.mark.parametrize("mark", ["generated: end", "generated: "])
def test_a_mark_that_is_missing_loses_nothing(
    missing: str, mark: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model_repository" / "ensemble"
    folder.mkdir(parents=True)
    text = (generate.ROOT / "model_repository" / "ensemble" / "config.pbtxt").read_text(encoding="utf-8")
    parts = text.split(mark)
    assert len(parts) > 2
    at = 1 if missing == "first" else len(parts) - 1
    (folder / "config.pbtxt").write_text(mark.join(parts[:at]) + mark.join(["", *parts[at:]])[len(mark) :])
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    with pytest.raises(ValueError, match="each region begins"):
        generate.stale()

"""The profiles that benches derive."""

from __future__ import annotations

from pathlib import Path

from covey.contracts import profile
from loadtest.bench.derive import derive


def test_a_derived_profile_differs_where_it_was_told_to(tmp_path: Path) -> None:
    usual = profile.load(profile.DEFAULT_PROFILE)
    path = derive(usual, tmp_path / "wide.toml", models=("target", "covey"), speculation={"width": 3, "drafters": []})
    found = profile.load(str(path))
    assert found.name == "wide"
    assert found.models == ("target", "covey")
    assert (found.speculation.width, found.speculation.drafters) == (3, ())
    assert (found.target, found.scheduler, found.limits) == (usual.target, usual.scheduler, usual.limits)

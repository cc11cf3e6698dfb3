"""The profiles that benches derive."""

from __future__ import annotations

from pathlib import Path

from covey.contracts import profile
from loadtest.bench.derive import derive, with_drafters


def test_a_derived_profile_differs_where_it_was_told_to(tmp_path: Path) -> None:
    usual = profile.load(profile.DEFAULT_PROFILE)
    path = derive(usual, tmp_path / "wide.toml", models=("target", "covey"), speculation={"width": 3, "drafters": []})
    found = profile.load(str(path))
    assert found.name == "wide"
    assert found.models == ("target", "covey")
    assert (found.speculation.width, found.speculation.drafters) == (3, ())
    assert (found.target, found.scheduler, found.limits) == (usual.target, usual.scheduler, usual.limits)


PAIR = """
models = ["target", "covey", "draft_aligned", "draft_ngram"]
[speculation]
drafters = ["draft_aligned", "draft_ngram"]
[drafter]
folders = ["draft_aligned:/somewhere/draft_aligned"]
"""


def test_a_drafter_that_is_left_out_is_not_said_to_lie_anywhere(tmp_path: Path) -> None:
    (tmp_path / "pair.toml").write_text(PAIR)
    pair = profile.load(str(tmp_path / "pair.toml"))
    found = profile.load(str(with_drafters(pair, tmp_path / "none.toml", (), policy="off")))
    assert (found.speculation.drafters, found.drafter.folders) == ((), ())
    assert found.models == ("target", "covey")
    one = profile.load(str(with_drafters(pair, tmp_path / "one.toml", ("draft_aligned",), policy="nightjar")))
    assert one.models == ("target", "covey", "draft_aligned")
    assert one.drafter.folders == pair.drafter.folders
    assert one.speculation.policy == "nightjar"

"""README and docs keep their promises: short, every link leads somewhere, every bench is called as it can be, every
profile loads, settings and metrics exist, and an example of output is what the software prints."""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from pathlib import Path

import pytest

from covey.contracts import profile
from covey.planner.decisions import Decision
from loadtest.bench.__main__ import _parse

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("[!.]*/*.md")))
CURRENT = [page for page in PAGES if page.stem != "CHANGELOG"]  # without names that are gone
MOST_WORDS = 900
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
PLACE = re.compile(r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)")  # a page, or "" for the same one, and a heading there
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| (?!word )(.+?) \|.*\| (.+) \|$", re.MULTILINE)  # of the glossary: words, and where they live
METRIC = re.compile(
    r"\bcovey_(?!client|ray|training|unary|vllm)\w*[a-z]\b"
)  # not the beginning of names: covey_draft_*
BENCH = re.compile(r"(?:python -m loadtest\.|`)bench ([a-z][^`#\n]*)")


def test_readme_is_a_first_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= MOST_WORDS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_and_those_to_headings_find_them(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    assert [link for link in LINK.findall(text) if not (page.parent / link).exists()] == []
    places = [(page.parent / to if to else page, heading) for to, heading in PLACE.findall(text)]
    assert [place for place in places if place[1] not in _headings(place[0])] == []


def test_readme_leads_to_every_page() -> None:
    links = LINK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert {f"docs/{page.name}" for page in ROOT.glob("docs/*.md")} <= set(links)


def test_benches_are_called_as_they_can_be() -> None:
    calls = [call for page in PAGES for call in BENCH.findall(page.read_text(encoding="utf-8"))]
    assert calls
    for call in calls:
        _parse(shlex.split(call))  # ends the test on what it cannot read


def test_the_glossary_has_the_words_of_the_code() -> None:
    missing = []
    for words, where in ROW.findall((ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")):
        code = _joined("".join((ROOT / "docs" / link).read_text(encoding="utf-8") for link in LINK.findall(where)))
        missing += [f"{word}: not in {where}" for word in words.split(", ") if _joined(word) not in code]
    assert missing == []


def test_profiles_load(tmp_path: Path) -> None:
    profiles = [text for page in PAGES for text in TOML.findall(page.read_text(encoding="utf-8"))]
    assert profiles
    for text in profiles:
        (tmp_path / "my.toml").write_text(text)
        profile.load(str(tmp_path / "my.toml"))


def test_settings_exist() -> None:
    sections = {
        field.name: getattr(profile.load("demo-cpu"), field.name) for field in dataclasses.fields(profile.Profile)
    }
    settings = {name: section for name, section in sections.items() if dataclasses.is_dataclass(section)}
    named = re.compile(rf"`({'|'.join(settings)})\.(?!toml|py)([a-z_]+)")
    found = {each for page in CURRENT for each in named.findall(page.read_text(encoding="utf-8"))}
    assert len(found) > 40
    assert sorted(each for each in found if not hasattr(settings[each[0]], each[1])) == []


def test_metrics_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", type(sys)("triton_python_backend_utils"))
    from covey.tritonio import metrics

    known = {*metrics.COUNTERS, *metrics.GAUGES, *metrics.HISTOGRAMS, *metrics.DRAFT_COUNTERS, *metrics.DRAFT_GAUGES}
    found = {each for page in CURRENT for each in METRIC.findall(page.read_text(encoding="utf-8"))}
    assert len(found) > 20
    assert sorted(found - known) == []


def test_the_decision_that_is_explained_has_the_form_of_those_that_are_printed() -> None:
    infinite = float("inf")
    decision = Decision(
        round=812,
        rows=4,
        lag=9,
        depth=4,
        why="best",
        predicted=(1.6e-3, 1.25e-3, 1.12e-3, 1.05e-3, 1.02e-3, 1.03e-3),
        observed=(1.58e-3, infinite, 1.15e-3, infinite, 1.04e-3, infinite),
        seconds=13 * 1.05e-3,
        tokens=13,
        drafts=16,
        learnt=True,
        drafters=(("draft_code", "ucb-be", 3), ("draft_general", "asked", 1)),
        chosen=4,
        capped="",
    )
    assert decision.line() in (ROOT / "docs" / "watching.md").read_text(encoding="utf-8")


def _headings(page: Path) -> set[str]:
    """Return the page's headings in the form that links to them have."""
    found = HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


def _joined(text: str) -> str:
    return re.sub(r"[\s_-]", "", text).lower()

"""README and docs keep their promises: short, every link leads somewhere, every bench is called as it can be."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from loadtest.bench.__main__ import _parse

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("[!.]*/*.md")))
MOST_WORDS = 900
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")
ROW = re.compile(r"^\| (?!word )(.+?) \|.*\| (.+) \|$", re.MULTILINE)  # of the glossary: words, and where they live
BENCH = re.compile(r"(?:python -m loadtest\.|`)bench ([a-z][^`#\n]*)")


def test_readme_is_a_first_page() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= MOST_WORDS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    assert [link for link in links if not (page.parent / link).exists()] == []


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


def _joined(text: str) -> str:
    return re.sub(r"[\s_-]", "", text).lower()

"""Log lines name the requests that they are about, in every thread on the way."""

from __future__ import annotations

import pytest

from covey.process.log_about import MOST, about, current, only, safe, told
from covey.process.worker import Thread


def test_a_line_names_what_it_is_about_and_few_of_many() -> None:
    assert told("failed") == "failed"
    with about(lambda: ("a", "b")):
        assert told("failed") == "failed [request a, b]"
        assert not only()
        with about(lambda: ("c",)):
            assert only() == "c"
            later = current()
        with about(lambda: map(str, range(MOST + 2))):
            assert told("failed").endswith(f", {MOST - 1} and 2 more]")
        with about(later):
            assert told("late") == "late [request c]"
        assert Thread("other").submit(told, "failed").result() == "failed [request a, b]"
    assert told("failed") == "failed"


@pytest.mark.parametrize("name", ["", "a b", "a\nE1124", "x" * 65, "a]", 7, None])
def test_what_could_harm_a_log_is_no_name(name: object) -> None:
    assert safe(name) == ""
    assert safe("chatcmpl-1.a:B_2") == "chatcmpl-1.a:B_2"

"""Which target of several a request goes to."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from covey.contracts.errors import BadField
from covey.requests.routing import AGAIN, LONGEST, PIECE, REMEMBERED, SPREAD, Router

LONG = bytes(range(256)) * 8


def give(router: Router, prompt: bytes, named: str = "", tenant: bytes = b"") -> str:
    name = router.order(named, prompt, tenant)[0]
    router.begun(name, prompt, tenant)
    return name


def test_the_one_that_is_named_and_no_other() -> None:
    router = Router(["a", "b"])
    for _ in range(5):
        assert router.order("b", LONG) == ["b"]
        give(router, LONG, "b")
    with pytest.raises(BadField, match="a, b"):
        router.order("c", LONG)


def test_short_prompts_go_where_least_is_open_and_in_turns() -> None:
    router = Router(["a", "b", "c"])
    assert Counter(give(router, b"short") for _ in range(9)) == {"a": 3, "b": 3, "c": 3}
    router.ended("b")
    assert give(router, b"short") == "b"
    for name in "abc":
        for _ in range(3):
            router.ended(name)
    assert router.open == {"a": 0, "b": 0, "c": 0}
    turns = []
    for _ in range(6):
        turns.append(give(router, b"short"))
        router.ended(turns[-1])
    assert Counter(turns) == {"a": 2, "b": 2, "c": 2}, "idle targets take turns"


def test_a_prompt_goes_where_the_longest_beginning_of_it_was() -> None:
    router = Router(["a", "b"])
    give(router, LONG[: 3 * PIECE], "a")
    give(router, LONG[: 5 * PIECE], "b")
    for name in "ab":
        router.ended(name)
    assert router.order("", LONG)[0] == "b"
    assert router.order("", LONG[: 3 * PIECE] + b"x" * 999)[0] == "a", "both know it: the one chosen least lately"
    assert router.order("", b"x" + LONG)[0] == "a", "nobody knows it"
    router.lost("b")
    assert router.order("", LONG)[0] == "a", "what was there is gone"


def test_a_known_beginning_is_not_worth_any_queue() -> None:
    router = Router(["a", "b"])
    chosen = [give(router, LONG) for _ in range(40)]
    assert abs(Counter(chosen)["a"] - Counter(chosen)["b"]) <= SPREAD + 1


def test_tenants_share_no_beginnings() -> None:
    router = Router(["a", "b"])
    give(router, LONG, "b", b"one")
    router.ended("b")
    assert router.order("", LONG, b"one")[0] == "b"
    assert router.order("", LONG, b"two")[0] == "a"


def test_what_is_remembered_has_an_end() -> None:
    router, rng = Router(["a"]), random.Random(1)
    for _ in range(100):
        give(router, rng.randbytes(PIECE * LONGEST * 2))
    assert len(router._given["a"]) <= REMEMBERED


def test_one_that_is_away_comes_last_and_makes_nobody_else_seem_busy() -> None:
    now = [0.0]
    router = Router(["a", "b", "c"], lambda: now[0])
    for _ in range(SPREAD + 2):
        router.begun("a", LONG)
        router.begun("b", b"short")
    router.begun("a", LONG)
    assert router.order("", LONG)[0] == "c"
    router.lost("c")
    assert router.order("", LONG) == ["a", "b", "c"], "a has the prompt and little more to do than b"
    now[0] += AGAIN
    assert router.order("", LONG)[0] == "c"

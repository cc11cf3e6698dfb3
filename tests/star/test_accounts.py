"""Whom a shared drafter can serve so that each gains by it."""

from __future__ import annotations

import itertools
import random

import pytest

from covey.star.accounts import SETTLED, UNLIMITED, Account, Accounts, largest
from covey.wire.ledger import CALLER_BITS, GROUP_BITS

S, Z = 0.010, 0.020


def account(service: float = S, away: float = Z, objective: float = 0.040, calls: int = SETTLED) -> Account:
    return Account(0.0, plain=objective, service=service, away=away, tokens=1.0, calls=calls)


def holding(*made: Account) -> Accounts:
    accounts = Accounts()
    accounts._of = dict(enumerate(made))
    return accounts


def holds(chosen: tuple[Account, ...]) -> bool:
    whole = sum(each.service for each in chosen)
    return all(max(whole, each.service + each.away) <= each.objective + 1e-9 for each in chosen)


@pytest.mark.parametrize("seed", range(200))
def test_the_set_is_the_largest_of_all_whose_objectives_hold(seed: int) -> None:
    rng = random.Random(seed)
    made = {
        who: account(rng.uniform(0.002, 0.02), rng.uniform(0, 0.03), rng.uniform(0.01, 0.08), rng.choice((0, SETTLED)))
        for who in range(rng.randrange(7))
    }
    found = largest(made, 1.0)
    assert holds(tuple(made[who] for who in found))
    sizes = (n for n in range(len(made) + 1) for each in itertools.combinations(made.values(), n) if holds(each))
    assert len(found) == max(sizes)


def test_alike_it_is_the_paper_s_number() -> None:
    accounts = holding(account(), account())
    assert accounts.most == 4
    assert accounts.admits(9)
    full = holding(*(account() for _ in range(4)))
    assert full.most == 4
    assert not full.admits(9)
    assert all(full.admits(who) for who in range(4))


def test_who_can_gain_nothing_keeps_nobody_out_and_is_refused() -> None:
    """Such as one that says that a token takes it no time."""
    accounts = holding(account(objective=1e-9), account(), account())
    assert accounts.admits(9)
    assert not accounts.admits(0)
    assert accounts.most == 4


def test_a_server_with_many_senders_leaves_room_for_one_that_has_one() -> None:
    full = holding(*(account(service=S * (1 + index / 100)) for index in range(4)))
    other = 1 << (CALLER_BITS - GROUP_BITS)
    assert not full.admits(9), "a fifth of its own"
    assert full.admits(other)
    full._of[other] = account(service=1.2 * S, away=0.5 * Z)
    assert [full.admits(who) for who in (0, 1, 2, 3, other)] == [True, True, True, False, True]
    for group in range(2, 5):
        full._of[group * other] = account()
    assert [who for who in full._of if full.admits(who)] == [0, 2 * other, 3 * other, 4 * other]
    assert not full.admits(5 * other)


def test_before_they_are_known_nobody_is_judged() -> None:
    accounts = holding(account(objective=1e-9, calls=SETTLED - 1), account(calls=1))
    assert accounts.most == UNLIMITED
    assert all(accounts.admits(who) for who in (0, 1, 9))
    assert holding(account(objective=1e-9)).admits(0), "whoever is alone"

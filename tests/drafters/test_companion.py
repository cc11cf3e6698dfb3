from __future__ import annotations

import numpy as np
import pytest

from covey.contracts.profile import DrafterSettings
from covey.contracts.types import NO_INTS, Offer, Open, Sampling
from covey.drafters import companion
from covey.drafters.companion import LookedUp
from covey.drafters.hit_rates import BOUNDS, OWN, PRIOR, HitRates
from covey.drafters.lookup import LookupDrafter
from covey.drafters.ngram import NgramDrafter
from covey.drafters.suffix import SuffixDrafter
from covey_client.wire import BAN

SETTINGS = DrafterSettings(ngram_max=4, suffix_store_tokens=400)
PASSAGE = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26]
KINDS = [NgramDrafter, SuffixDrafter]


def drafter_of(kind: type[LookupDrafter]) -> LookupDrafter:
    return kind(SETTINGS, name=kind.__name__, vocab_size=0)


def opened(drafter: LookupDrafter, prompt: list[int], rates: HitRates | None = None, **more: object) -> LookedUp:
    opening = Open(1, np.asarray(prompt, np.int32), len(prompt), **{"sampling": Sampling(), **more})  # type: ignore[arg-type]
    found = LookedUp(drafter, opening, rates or HitRates())
    found.open()
    found.read([])
    return found


def test_a_chain_is_expected_as_the_rates_of_its_matches_say() -> None:
    rates = HitRates(HitRates())
    for matched, right in ((3, 0.6), (4, 0.8)):
        for count in range(1000):
            rates.add(matched, 7 * count % 10 < 10 * right)
    assert [rates.of(matched) for matched in (3, 4, 5)] == pytest.approx([0.6, 0.8, 0.5], abs=0.05)
    text = opened(drafter_of(NgramDrafter), [*PASSAGE, *PASSAGE[:3]])
    text.rates = rates
    offer = text.offer(15, 3)
    assert offer.tokens == PASSAGE[3:6]
    likely = np.cumprod([rates.of(3), rates.of(4), rates.of(4)])  # an n-gram matches 4 at most
    assert offer.accepted == pytest.approx(np.cumsum(likely).tolist())


def test_rates_are_those_of_the_last_offers_and_lean_on_all_texts() -> None:
    usual = HitRates()
    one, other = HitRates(usual), HitRates(usual)
    for _ in range(200):
        one.add(2, False)
    assert one.of(2) < 0.01
    assert other.of(2) == usual.of(2) < 0.02
    assert other.of(7) == 0.5, "longer matches have rates of their own"
    for _ in range(int(3 * OWN)):
        one.add(2, True)
    assert one.of(2) > 0.7, "it is found out within some tokens"
    assert one.of(1000) == one.of(BOUNDS[-1] + 1) == 0.5
    assert PRIOR > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_copies_is_offered_what_it_copies(kind: type[LookupDrafter]) -> None:
    text = opened(drafter_of(kind), [*PASSAGE, 7, 8])
    promised = []
    for place, token in enumerate(PASSAGE[:-1]):
        text.read([token])
        before = text.offer(place, 6)
        assert before == text.offer(place, 6), "asking changes nothing"
        assert before.tokens == [*PASSAGE, 7, 8, *PASSAGE][place + 1 :][: len(before.tokens)]
        promised.append(sum(before.accepted[:1]))
    assert min(promised) >= 0.5
    assert text.rates.of(1) > 0.5
    assert [len(text.offer(0, most).tokens) for most in (0, 1, 2)] == [0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_only_seems_to_repeat_itself_is_offered_less_and_less(kind: type[LookupDrafter]) -> None:
    random = np.random.default_rng(1)
    text = opened(drafter_of(kind), random.integers(0, 12, 40).tolist())
    for _ in range(60):
        text.read([int(random.integers(0, 12))])
    assert sum(text.offer(0, 6).accepted[-1:]) < 0.35


def test_what_a_request_put_out_is_offered_to_its_tenant_s_next() -> None:
    drafter, rates = drafter_of(SuffixDrafter), HitRates()
    first = opened(drafter, [1, 2], rates, tenant="one")
    first.read(PASSAGE)
    assert opened(drafter, [4, *PASSAGE[:3]], rates, tenant="one").offer(0, 4) == Offer(0, [], [])
    first.end()
    assert opened(drafter, [4, *PASSAGE[:3]], rates, tenant="one").offer(0, 4).tokens[:1] == PASSAGE[3:4]
    assert opened(drafter, [4, *PASSAGE[:3]], rates, tenant="other").offer(0, 4).tokens == []


def test_excluded_tokens_end_a_chain() -> None:
    sampling = Sampling(logit_bias=((PASSAGE[4], BAN),))
    text = opened(drafter_of(NgramDrafter), [*PASSAGE, *PASSAGE[:3]], sampling=sampling)
    assert text.offer(0, 6).tokens == PASSAGE[3:4]


@pytest.mark.parametrize("kind", KINDS)
def test_many_tokens_at_once_are_read_as_one_by_one(kind: type[LookupDrafter]) -> None:
    tokens = [*PASSAGE, 5, *PASSAGE, 6, *PASSAGE[:4]]
    one, other = opened(drafter_of(kind), [1, 2]), opened(drafter_of(kind), [1, 2])
    for token in tokens:
        one.read([token])
    assert len(tokens) > companion.MANY
    other.read(tokens)
    other.rates = one.rates
    assert one.offer(0, 6) == other.offer(0, 6)
    assert one.offer(0, 6).tokens[:1] == PASSAGE[4:5]


def test_of_a_long_prompt_whose_answer_is_continued_the_end_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens behind the prompt are output that came before: it is kept for others as far as it was read."""
    monkeypatch.setattr(companion, "MOST", 8)
    drafter, rates = drafter_of(SuffixDrafter), HitRates()
    tokens = np.asarray([*range(50, 60), *PASSAGE[:6]], np.int32)
    text = LookedUp(drafter, Open(1, tokens, 10, Sampling()), rates)
    text.open()
    text.read(PASSAGE[6:8])
    assert text.lookup.tokens == [58, 59, *PASSAGE[:8]]
    assert text.lookup.num_prompt == 2
    text.end()
    assert opened(drafter, [4, *PASSAGE[:3]], rates).offer(0, 4).tokens[:1] == PASSAGE[3:4]
    assert opened(drafter, [58, 59], rates).offer(0, 4).tokens == [], "no part of a prompt is kept"


def test_an_empty_prompt_opens() -> None:
    assert opened(drafter_of(SuffixDrafter), NO_INTS.tolist()).offer(0, 3).tokens == []

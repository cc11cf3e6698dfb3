import itertools

import pytest
import torch
from rich.console import Console
from transformers import LlamaForCausalLM

from covey.contracts.errors import SettingError
from covey_training import chains
from covey_training.__main__ import parse
from covey_training.chains import Sample
from covey_training.distil import distance
from covey_training.optimiser import Clock


def test_acceptance_is_one_minus_total_variation() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 5, 7, generator=generator)
    found = chains.acceptances(left, right).tolist()
    for i, (p, q) in enumerate(zip(left.softmax(-1).tolist(), right.softmax(-1).tolist())):
        assert found[i] == pytest.approx(1 - sum(abs(a - b) for a, b in zip(p, q)) / 2, abs=1e-6)


def test_accepted_length_is_the_expectation_over_every_outcome() -> None:
    rates = torch.tensor([[0.9, 0.3, 0.75, 0.5, 0.6], [0.3, 0.75, 0.5, 0.6, 1.0]], dtype=torch.float64)
    expected = 0.0
    for row in rates.tolist():
        for outcome in itertools.product((True, False), repeat=5):
            chance = 1.0
            for rate, accepted in zip(row, outcome):
                chance *= rate if accepted else 1 - rate
            expected += chance * len(list(itertools.takewhile(bool, outcome)))
    found = chains.measured(rates)
    assert found.accepted_length == pytest.approx(expected / 2)
    assert found.acceptance == pytest.approx(rates.mean(0).tolist())


def test_samples_that_are_shorter_than_a_draft_are_refused() -> None:
    with pytest.raises(SettingError, match="no held-out sample has 5 tokens"):
        chains.measured(torch.zeros(0, 5))


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_the_gradient_of_distance_is_its_formulas(weight: float) -> None:
    q, p = torch.randn(2, 5, 40, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).float()
    q.requires_grad_()
    log_q, log_p = q.log_softmax(-1), p.log_softmax(-1)
    divergence = (log_p.exp() * (log_p - log_q)).sum(-1).mean()
    total_variation = (log_p.exp() - log_q.exp()).abs().sum(-1).mean() / 2
    expected = (1 - weight) * divergence + weight * total_variation
    loss, found = distance(q, p, weight)
    assert float(found) == pytest.approx(float(total_variation.detach()), abs=1e-6)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-6)
    (given,) = torch.autograd.grad(3 * loss, q)
    (wanted,) = torch.autograd.grad(3 * expected, q)
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-8)


def test_the_target_itself_has_full_acceptance(tiny_target: LlamaForCausalLM, tiny_drafter: LlamaForCausalLM) -> None:
    samples = [Sample([5, 6, 7], list(range(20, 32))), Sample([8, 9], list(range(40, 52)))]
    found = chains.of_others(tiny_target, {"same": tiny_target, "other": tiny_drafter}, samples, [[True] * 12] * 2)
    assert found["same"].accepted_length == pytest.approx(5.0, abs=1e-3)
    assert found["other"].accepted_length < 5.0
    chains.show({"math": found}, Console(quiet=True))


@pytest.mark.parametrize("command", ["drafter", "head"])
def test_the_command_line_says_that_a_budget_is_missing(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([command, "--target", "x", "--out", "y"])
    assert "needs a budget: --minutes or --steps" in capsys.readouterr().err


def test_measuring_stops_when_the_minutes_are_over_but_not_before_the_first(
    tiny_target: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [Sample([1, 2], [3, 4, 5]) for _ in range(2 * chains.ROWS)]
    assert sum(len(chosen) for chosen, _ in chains.padded(tiny_target, samples, chains.NO_LIMIT)) == len(samples)
    over = Clock(0.0)
    assert [len(chosen) for chosen, _ in chains.padded(tiny_target, samples, over)] == [chains.ROWS]
    monkeypatch.setattr(chains, "NUMBERS", 5 * int(tiny_target.config.vocab_size))
    assert [len(chosen) for chosen, _ in chains.padded(tiny_target, samples[:2], chains.NO_LIMIT)] == [1, 1]

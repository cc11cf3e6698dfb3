from __future__ import annotations

import pytest
import torch
from torch import nn

from covey_training.optimiser import Muon


@pytest.mark.parametrize("shape", [(48, 16), (16, 48)])
def test_muon_does_what_pytorch_s_does_but_for_bfloat16_s_rounding(shape: tuple[int, int]) -> None:
    numbers = torch.Generator().manual_seed(5)
    ours, theirs = (nn.Parameter(torch.ones(shape)) for _ in range(2))
    muon = Muon([ours], lr=0.02, weight_decay=0.1)
    reference = torch.optim.Muon([theirs], lr=0.02, momentum=0.95, weight_decay=0.1)
    for _ in range(8):
        ours.grad = torch.randn(shape, generator=numbers)
        theirs.grad = ours.grad.clone()
        muon.step()
        reference.step()
    moved = (ours - 1).norm()
    assert (ours - theirs).norm() < 0.01 * moved

"""Makes a pair of a given shape that agrees at a given rate.

First the head is scaled until the target has the entropy of a real language model. Then the later layers are damped
until the drafter, which lacks them, agrees often enough. The less the later layers add, the more often the first ones
are right without them. The damping that was found is measured again on texts that the search has not seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import PretrainedConfig, PreTrainedModel

from covey.contracts.errors import SettingError
from covey_client.progress import Steps
from covey_training.aligned.agreement import Agreement, Panel, entropies, measure, random_ids
from covey_training.aligned.shapes import check_layers
from covey_training.aligned.weights import blank, damp, draw_head, draw_weights, first_layers

ENTROPY = 3.0  # bits per token at temperature 1: language models have 2 to 4 on ordinary text
TOLERANCE = 0.03  # allowed error of the agreement on texts that the search has not seen
CLOSE = 0.005  # the search stops this close, which leaves the rest of the tolerance for chance
LEAST_DAMPED, MOST_DAMPED = 1.0, 2.0**-10
STEPS = 12
SEARCHED_ROWS = 32  # half of those in the last measurement, because the search reads its texts at every step
SEEDS = 1 << 32
HINT = "choose another agreement, another number of layers or another seed"


@dataclass(frozen=True)
class Pair:
    """A target and its first layers as a drafter. The drafter's weights are the target's own tensors."""

    target: PreTrainedModel
    drafter: PreTrainedModel
    seed: int
    damping: float  # factor on all that the later layers add
    wanted: float
    measured: Agreement  # on texts that the search has not seen


def build(
    config: PretrainedConfig, layers: int, agreement: float, seed: int, device: torch.device, dtype: torch.dtype
) -> Pair:
    """Return the pair of this shape on the device. Raises SettingError, with the agreement reached, if it is too far
    off.

    `agreement` is how often the drafter's draw equals the target's at temperature 1, after correct tokens.
    """
    check_layers(config, layers)
    if not 0.0 < agreement < 1.0:
        raise SettingError(f"agreement: got {agreement:g}, allowed: between 0 and 1")
    if not 0 <= seed < SEEDS:
        raise SettingError(f"seed: got {seed}, allowed: 0 to {SEEDS - 1}")
    target = blank(config, device, dtype)
    draw_weights(target, seed)
    draw_head(target, seed, spread_of(target, seed))
    drafter = first_layers(target, layers)

    def at(damping: float, panel: Panel) -> Agreement:
        damp(target, seed, layers, damping)
        return measure(target, drafter, panel)

    searched, unseen = Panel(seed, rows=SEARCHED_ROWS), Panel(seed + SEEDS)
    damping = search(lambda damping: at(damping, searched).coupled, agreement)
    measured = at(damping, unseen)
    if abs(measured.coupled - agreement) > TOLERANCE:
        raise SettingError(f"agreement: got {agreement:g}, reached {measured.coupled:.3f} on other texts: {HINT}")
    return Pair(target, drafter, seed, damping, agreement, measured)


def search(agreement_at: Callable[[float], float], wanted: float) -> float:
    """Return the damping with the wanted agreement, by interpolation between the ends of a shrinking interval. If one
    end stays, its error is halved each time, so that the other does not creep (the Illinois rule)."""
    with Steps() as bar:
        task = bar.add_task("damping", total=STEPS + 2)

        def agrees(damping: float) -> float:
            agreed = agreement_at(damping)
            bar.update(task, advance=1, description=f"damping {damping:.4f} agrees {agreed:.3f}")
            return agreed

        low, high = agrees(LEAST_DAMPED), agrees(MOST_DAMPED)
        if not low - CLOSE <= wanted <= high + CLOSE:
            raise SettingError(
                f"agreement: got {wanted:g}, reached {low:.3f} (nothing damped) to {high:.3f} (all damped): {HINT}"
            )
        ends = [math.log(LEAST_DAMPED), math.log(MOST_DAMPED)]
        off = [odds(low) - odds(wanted), odds(high) - odds(wanted)]
        moved = -1
        for _ in range(STEPS):
            way = min(max(off[0] / (off[0] - off[1]), 0.0), 1.0)
            middle = ends[0] + way * (ends[1] - ends[0])
            agreed = agrees(math.exp(middle))
            if abs(agreed - wanted) <= CLOSE:
                break
            side = 0 if agreed < wanted else 1
            if side == moved:
                off[1 - side] /= 2
            ends[side], off[side], moved = middle, odds(agreed) - odds(wanted), side
        return math.exp(middle)


def odds(share: float) -> float:
    """Return the logarithm of the odds, which falls almost linearly with the logarithm of the damping. It is finite for
    shares of 0 and 1 as well."""
    kept = min(max(share, 0.001), 0.999)
    return math.log(kept / (1 - kept))


@torch.inference_mode()
def spread_of(target: PreTrainedModel, seed: int) -> float:
    """Return the deviation of logits at which the target has entropy ENTROPY on random ids. It hardly depends on the
    text: the final norm gives all states about the same length, and the head is independent of them."""
    logits = target(input_ids=random_ids(target, 16, seed), use_cache=False).logits.flatten(0, 1).float()
    low, high = 0.0, 64.0
    for _ in range(24):
        middle = (low + high) / 2
        if entropies(middle * logits).mean().item() > ENTROPY:
            low = middle
        else:
            high = middle
    return (low + high) / 2

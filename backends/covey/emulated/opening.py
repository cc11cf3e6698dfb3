"""Makes a profile's emulated target and drafters: from its settings to `covey.emulated.devices`.

Token ids are those of the tokenizer in the target's folder. No weights are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from covey.contracts.errors import SettingError
from covey.contracts.ports import Clock
from covey.contracts.profile import Profile, costs_file
from covey.emulated.devices import EmulatedDrafter, EmulatedTarget
from covey.emulated.hash_model import HashModel
from covey.planner.cost_table import load_costs
from covey.text.tokenization import load_tokenizer

# Most tokenizers have ends, controls and single bytes below this id. Ends would end a text; bytes make no readable one.
FIRST_TOKEN = 300


def load_target(folder: str | Path, profile: Profile, clock: Clock) -> EmulatedTarget:
    """Return the device that the profile emulates; `folder` holds the tokenizer."""
    settings, emulated = profile.target, profile.emulated
    block_bytes = settings.block_size * emulated.kv_token_bytes
    blocks = settings.kv_blocks or (settings.kv_memory_mb << 20) // block_bytes
    if not settings.names_size:
        blocks = -(-profile.scheduler.max_running * emulated.max_positions // settings.block_size)
    if blocks < 1:
        raise SettingError(
            f"target.kv_memory_mb: {settings.kv_memory_mb} MB cannot hold a block of {block_bytes} bytes: give more"
        )
    return EmulatedTarget(
        load_costs(costs_file(emulated.costs)),
        hash_model(folder),
        clock,
        blocks=blocks,
        block_size=settings.block_size,
        max_positions=emulated.max_positions,
        folder=str(folder),
        block_bytes=block_bytes if profile.memory.policy != "off" else 0,
    )


def load_drafter(target: str | Path, profile: Profile, clock: Clock, *, name: str) -> EmulatedDrafter:
    """Return the emulated drafter `name` of the emulated target whose tokenizer is in `target`."""
    emulated = profile.emulated
    if not profile.target.emulated:
        raise SettingError(
            f"{name}: an emulated drafter cannot draft for a real target: set target.kind to emulated, or leave it out"
        )
    costs = load_costs(costs_file(emulated.costs))
    if name not in costs.draft:
        raise SettingError(f"{name}: cost table {costs.name} has no such drafter, only {', '.join(costs.draft)}")
    return EmulatedDrafter(
        costs,
        hash_model(target),
        clock,
        name=name,
        rates=acceptance(emulated.acceptance, name),
        max_positions=emulated.max_positions,
        resident_bytes=emulated.drafter_mb << 20,
    )


def acceptance(listed: Sequence[str], name: str) -> dict[str, tuple[float, ...]]:
    """Return a drafter's acceptance rates by tenant, "" for all others, from emulated.acceptance. Raises
    SettingError."""
    rates_of = {}
    for entry in listed:
        whose, _, rates = entry.rpartition(":")
        drafter, _, tenant = whose.partition("/")
        if drafter == name:
            rates_of[tenant] = tuple(float(rate) for rate in rates.split(","))
    if not rates_of:
        raise SettingError(f"emulated.acceptance: no entry for {name}: add {name}:0.6 or the like")
    return rates_of


def hash_model(folder: str | Path) -> HashModel:
    """Return a hash model with the token ids of the folder's tokenizer."""
    tokenizer = load_tokenizer(folder)
    size = 0 if tokenizer is None else tokenizer.get_vocab_size()
    if size <= FIRST_TOKEN:
        raise SettingError(f"{folder}: an emulated target needs a tokenizer of more than {FIRST_TOKEN} tokens here")
    return HashModel(size, FIRST_TOKEN)

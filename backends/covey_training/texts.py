"""Texts that a target of any folder wrote itself: some to learn from, others to be measured by, kept beside a run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from covey import prompts
from covey.contracts.errors import SettingError
from covey.models import loading, refusals
from covey.models.identity import of_model
from covey.server import hub
from covey_training import checkpoint
from covey_training.sampling import Sample, ends_of, sample

HELD_OUT = 10  # of so many prompts one teaches nothing


@dataclass(frozen=True, slots=True)
class Target:
    """A target's folder, opened."""

    folder: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    window: int  # tokens of a lesson

    def write(
        self, asked: Sequence[str], measured: Sequence[str], options: argparse.Namespace
    ) -> tuple[torch.Tensor, list[Sample]]:
        """Draw a text for each prompt: the tokens of those asked for, one after the other, and the samples to be
        measured by."""
        most = self.window - options.tokens
        if most < 1:
            raise SettingError(f"--tokens: got {options.tokens}, allowed: fewer than {self.window} for this target")
        limits = {"tokens": options.tokens, "rows": options.together, "longest": most}
        Console().print(f"The target writes {len(asked)} texts to learn from, of {options.tokens} tokens at most.")
        held_out = sample(self.model, self.tokenizer, measured, seed=options.seed + 1, **limits)
        written = sample(self.model, self.tokenizer, asked, seed=options.seed, **limits)
        ends = ends_of(self.model.config)[:1]
        joined = [token for one in written for token in (*one.prompt, *one.continuation, *ends)]
        if len(joined) < self.window:
            raise SettingError(f"the target wrote {len(joined)} tokens: too few to learn from; ask for more --samples")
        return torch.tensor(joined), held_out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", required=True, metavar="MODEL", help="folder, or name on the Hugging Face hub")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the drafter is to be")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="a prompt in each line (default: bundled ones)")
    parser.add_argument("--samples", type=int, default=1024, help="texts that the target writes to learn from")
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of each")
    parser.add_argument("--together", type=int, default=64, help="texts drawn at once")
    parser.add_argument("--window", type=int, default=256, help="tokens of a lesson, its prompt among them")
    parser.add_argument("--rows", type=int, default=4, help="lessons of a step")


def open_target(name: str, device: torch.device, dtype: torch.dtype, window: int) -> Target:
    folder = Path(hub.folder(name))
    refusals.by_files(folder)
    config = loading.read_config(folder)
    loading.check_config(folder, config)
    model = loading.load_module(folder, config, dtype, device, attention_of(config))
    assert isinstance(model, PreTrainedModel)
    return Target(folder, model, _tokenizer(folder), min(window, loading.find_max_positions(config)))


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises many kinds; all mean that it cannot read this
        raise SettingError(f"{folder}: its tokenizer cannot be read: {error}; copy its files again") from error


def attention_of(config: PretrainedConfig) -> str:
    """Return the faster of transformers' own where the target's class knows it: that of GPT-OSS does not."""
    return "sdpa" if MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._supports_sdpa else "eager"


def read_prompts(path: Path | None) -> dict[str, list[str]]:
    """Return the lines of a file under its name, or the bundled prompts under their domains'."""
    if path is None:
        return {domain: prompts.load(domain) for domain in prompts.DOMAINS}
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if len(lines) < HELD_OUT:
        raise SettingError(
            f"{path}: {len(lines)} prompts, allowed: {HELD_OUT} lines or more, a tenth of them to measure"
        )
    return {path.name: lines}


def lessons(
    target: Target, options: argparse.Namespace, path: Path, settings: Sequence[Any] = ()
) -> tuple[torch.Tensor, dict[str, list[Sample]]]:
    """Return the windows to learn from, and by group of prompts what the target wrote to be measured by; both are kept
    for a run that goes on with the same `settings`."""
    groups = read_prompts(options.prompts)

    def make() -> dict[str, Any]:
        measured = {name: group[::HELD_OUT] for name, group in groups.items()}
        teaching = [text for group in groups.values() for at, text in enumerate(group) if at % HELD_OUT]
        asked = [teaching[at % len(teaching)] for at in range(options.samples)]
        tokens, samples = target.write(asked, [text for group in measured.values() for text in group], options)
        drawn = iter(samples)
        held_out = {
            name: [(one.prompt, one.continuation) for one in islice(drawn, len(group))]
            for name, group in measured.items()
        }
        return {"tokens": tokens, "held_out": held_out}

    asked = [groups, options.samples, options.tokens, options.window, options.seed, *settings]
    found = kept(path, of_model(target.folder, asked), make)
    tokens = found["tokens"][: len(found["tokens"]) // target.window * target.window]
    held_out = {name: [Sample(*pair) for pair in pairs] for name, pairs in found["held_out"].items()}
    return tokens.view(-1, target.window), held_out


def kept(path: Path, made_with: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what was made, from the file where a run that goes on has it."""
    if path.is_file():
        found: dict[str, Any] = torch.load(path, weights_only=True)
        if found["made_with"] != made_with:
            raise SettingError(
                f"{path} is of another target, other prompts or samples: remove it or choose another --out"
            )
        return found
    made = make() | {"made_with": made_with}
    checkpoint.write(path, made)
    return made

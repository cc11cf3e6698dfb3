"""`python -m covey.training drafter`: a small drafter for any target, distilled from the target's own samples.

Needs nothing but the target's folder: prompts are the bundled ones, or lines of a file. Every tenth prompt is held out:
the target's continuations of those say how often the drafter will be right, beside what looking up earlier text would.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoTokenizer,
    GenerationConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from covey import prompts
from covey.contracts.errors import SettingError
from covey.contracts.profile import GENERAL, DrafterSettings
from covey.drafters.ngram import NgramLookup
from covey.models import loading, refusals
from covey.models.identity import of_model
from covey.server import hub
from covey.server.options import state_folder
from covey.server.preflight import TOKENIZERS
from covey_training import architecture, distil, evaluate
from covey_training.optimiser import Budget
from covey_training.sampling import Sample, ends_of, sample
from covey_training.teacher import Lessons, hidden_states

__all__ = ["add_arguments", "attention_of", "make", "run"]

HELD_OUT = 10  # of so many prompts one teaches nothing
WINDOW = 256  # tokens of a lesson
TOGETHER = 64  # samples drawn at once


@dataclass(frozen=True, slots=True)
class Made:
    """A drafter's folder, its profile, and the share of held-out tokens that it and n-grams were right about."""

    folder: Path
    profile: Path
    acceptance: float
    accepted_length: float
    ngram: float
    tokens: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", required=True, metavar="MODEL", help="folder, or name on the Hugging Face hub")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where the drafter is to be")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="a prompt in each line (default: bundled ones)")
    parser.add_argument("--samples", type=int, default=1024, help="texts that the target writes to learn from")
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of each")


def run(options: argparse.Namespace) -> None:
    made = make(options)
    console = Console()
    console.print(
        f"Of {made.tokens} held-out tokens, at temperature 1, the target accepts {made.acceptance:.0%} "
        f"({made.accepted_length:.2f} of a draft of {evaluate.DEPTH}), and of what n-grams draft {made.ngram:.0%}."
    )
    console.print(f"make serve PROFILE={shlex.quote(str(made.profile))}", soft_wrap=True, highlight=False)


def make(options: argparse.Namespace) -> Made:
    """Draw, learn, measure and write; the same command again goes on where it was stopped."""
    folder = Path(hub.folder(options.target, state_folder()))
    refusals.by_files(folder)
    config = loading.read_config(folder)
    loading.check_config(folder, config)
    device = torch.device(options.device)
    target = loading.load_module(folder, config, torch.float32, device, attention_of(config), streamed=False)
    assert isinstance(target, PreTrainedModel)
    tokenizer = _tokenizer(folder)
    texts = read_prompts(options.prompts)
    lessons, held_out = _lessons(folder, target, tokenizer, texts, options)
    torch.manual_seed(options.seed)
    student = _student(target).to(device)
    distil.train(
        {GENERAL: student},
        {GENERAL: lessons},
        target,
        Budget(steps=options.steps, minutes=options.minutes),
        _work(options.out) / "drafter.pt",
        seed=options.seed,
    )
    student.eval()
    rates = evaluate.sample_acceptances(target, {GENERAL: student}, held_out)[GENERAL]
    lengths = [length for row in rates for length in evaluate.accepted_lengths(row)]
    made = Made(
        folder=options.out.resolve(),
        profile=options.out.resolve() / "profile.toml",
        acceptance=statistics.fmean(rate for row in rates for rate in row),
        accepted_length=statistics.fmean(lengths) if lengths else 0.0,
        ngram=looked_up(held_out),
        tokens=sum(map(len, rates)),
    )
    _save(student, folder, made)
    return made


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises many kinds; all mean that it cannot read this
        raise SettingError(f"{folder}: its tokenizer cannot be read: {error}; copy its files again") from error


def attention_of(config: PretrainedConfig) -> str:
    """The faster of transformers' own where the target's class knows it: Bloom, MPT and GPT-OSS do not."""
    return "sdpa" if MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._supports_sdpa else "eager"


def read_prompts(path: Path | None) -> list[str]:
    if path is None:
        return [text for domain in prompts.DOMAINS for text in prompts.load(domain)]
    texts = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if len(texts) < HELD_OUT:
        raise SettingError(
            f"{path}: {len(texts)} prompts, allowed: {HELD_OUT} lines or more, a tenth of them to measure"
        )
    return texts


def _lessons(
    folder: Path,
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    options: argparse.Namespace,
) -> tuple[Lessons, list[Sample]]:
    """Return what the target wrote with its hidden states, and what it wrote to be measured by; kept for a run that
    goes on."""
    path = _work(options.out) / "lessons.pt"
    made_with = of_model(folder, [list(texts), options.samples, options.tokens, options.seed])
    kept = torch.load(path, weights_only=True) if path.is_file() else {}
    if kept.get("made_with") == made_with:
        return Lessons(kept["tokens"], kept["hidden"]), [Sample(*pair) for pair in kept["held_out"]]
    if kept:
        raise SettingError(f"{path} is of another target, other prompts or samples: remove it or choose another --out")
    longest = min(WINDOW, loading.find_max_positions(target.config))
    most = longest - options.tokens
    if most < 1:
        raise SettingError(f"--tokens: got {options.tokens}, allowed: fewer than {longest} for this target")
    teaching = [text for place, text in enumerate(texts) if place % HELD_OUT]
    asked = [teaching[place % len(teaching)] for place in range(options.samples)]

    def written(starts: Sequence[str], seed: int) -> list[Sample]:
        limits = {"tokens": options.tokens, "rows": TOGETHER, "longest": most}
        return sample(target, tokenizer, starts, seed=seed, **limits)

    Console().print(f"The target writes {len(asked)} texts to learn from, of {options.tokens} tokens at most.")
    held_out = written(texts[::HELD_OUT], options.seed + 1)
    ends = ends_of(target.config)[:1]
    joined = [token for one in written(asked, options.seed) for token in (*one.prompt, *one.continuation, *ends)]
    if len(joined) < longest:
        raise SettingError(f"the target wrote {len(joined)} tokens: too few to learn from; ask for more --samples")
    windows = torch.tensor(joined[: len(joined) // longest * longest]).view(-1, longest)
    lessons = Lessons(windows, hidden_states(target, windows, 8))
    path.parent.mkdir(parents=True, exist_ok=True)
    pairs = [(one.prompt, one.continuation) for one in held_out]
    partial = path.with_suffix(".partial")
    torch.save({"tokens": windows, "hidden": lessons.hidden, "held_out": pairs, "made_with": made_with}, partial)
    partial.replace(path)
    return lessons, held_out


def _student(target: PreTrainedModel) -> LlamaForCausalLM:
    ends = ends_of(target.config)
    student = architecture.drafter(int(target.config.vocab_size), ends[0] if ends else 0)
    student.config.max_position_embeddings = loading.find_max_positions(target.config)
    student.config.eos_token_id = list(ends) or None
    distil.start_from_target(student, target)
    return student


def looked_up(samples: Sequence[Sample]) -> float:
    """The share of the samples' tokens that n-grams of the text before them say."""
    settings, hits, total = DrafterSettings(), 0, 0
    for one in samples:
        lookup = NgramLookup(settings.ngram_min, settings.ngram_max)
        lookup.extend(one.prompt)
        for token in one.continuation:
            hits += [child.token for child in lookup.children(lookup.place(), 1)] == [token]
            lookup.extend([token])
        total += len(one.continuation)
    return hits / max(1, total)


def _work(out: Path) -> Path:
    """Return the folder of what a run needs to go on, beside the drafter."""
    return out.resolve().parent / f".{out.resolve().name}.run"


def _save(student: LlamaForCausalLM, target: Path, made: Made) -> None:
    with architecture.staged(made.folder) as staging:
        narrow = LlamaForCausalLM(student.config).to(torch.bfloat16)
        narrow.load_state_dict(student.state_dict())
        narrow.generation_config = GenerationConfig(eos_token_id=student.config.eos_token_id)
        narrow.save_pretrained(staging)
        for name in (*TOKENIZERS, "special_tokens_map.json", "merges.txt", "added_tokens.json"):
            if (target / name).is_file():
                shutil.copyfile(target / name, staging / name)
        (staging / "profile.toml").write_text(_profile(target, made), encoding="utf-8")


def _profile(target: Path, made: Made) -> str:
    drafters = [GENERAL, "draft_ngram", "draft_suffix"]
    models = ["target", "tokenize", "detokenize", "covey", "covey_unary", "ensemble", *drafters]
    return f"""\
# The drafter beside this file was distilled for this target. Of {made.tokens} held-out tokens, at temperature 1, the
# target accepts {made.acceptance:.3f}, and of what n-grams draft {made.ngram:.3f}. Who moves a folder edits its path.
description = "a target and the drafter distilled for it"
models = {json.dumps(models)}

[target]
folder = {json.dumps(str(target.resolve()))}

[speculation]
drafters = {json.dumps(drafters)}

[drafter]
folders = [{json.dumps(f"{GENERAL}:{made.folder}")}]
"""

"""`python -m covey_training`: drafters and heads for any target, synthetic pairs, and measured acceptance.

    python -m covey_training drafter --target /models/mine --out drafter --minutes 5

distils a small drafter for any target from the target's own samples.

    python -m covey_training head --target /models/mine --out head --minutes 30

trains an EAGLE-3 head, which reads the target's hidden states. Both commands resume where they were stopped.

    python -m covey_training widen head wide-head

writes a head with int8 matrices in bf16, as other systems read it.

    python -m covey_training aligned --size tiny --agreement 0.7 --out pair

makes a pair of models with random weights to measure with, and trains nothing.

    python -m covey_training evaluate

measures the acceptance of the bundled drafters on the bundled prompts.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

import torch
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from covey.contracts.errors import SettingError
from covey_client import interruption
from covey_training import architecture, chains, head, head_model, own, texts
from covey_training.aligned import command as aligned

TARGET = "target"
WINDOW = 1024  # the most tokens of a bundled prompt and the target's continuation of it


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m covey_training", description=__doc__.splitlines()[0])
    machine = argparse.ArgumentParser(add_help=False)
    machine.add_argument("--seed", type=int, default=0)
    machine.add_argument("--device", default="auto", help="auto, cpu or cuda")
    budget = argparse.ArgumentParser(add_help=False)
    given = budget.add_mutually_exclusive_group()
    given.add_argument("--minutes", type=float, help="stop after this many minutes, with the learning rate decayed")
    given.add_argument("--steps", type=int, help="stop after this many steps, which is reproducible")
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("evaluate", parents=[machine], help="measure acceptance on the bundled prompts")
    measured.add_argument("--out", type=Path, default=Path("model_repository"), help="model repository to read")
    measured.add_argument("--tokens", type=int, default=96, help="tokens of each sample")
    single = commands.add_parser("drafter", parents=[machine, budget], help="distil a drafter for any target")
    texts.add_arguments(single)
    reading = commands.add_parser("head", parents=[machine, budget], help="train an EAGLE-3 head for any plain target")
    head.add_arguments(reading)
    wide = commands.add_parser("widen", parents=[machine], help="write an int8 head as other systems read it")
    wide.add_argument("folder", type=Path)
    wide.add_argument("out", type=Path)
    synthetic = commands.add_parser("aligned", parents=[machine], help="make a synthetic pair to measure with")
    aligned.add_arguments(synthetic)
    options = parser.parse_args(arguments)
    if options.command in ("drafter", "head") and options.minutes is None and options.steps is None:
        parser.error(f"{options.command} needs a budget: --minutes or --steps")
    return options


def main(arguments: list[str]) -> None:
    options = parse(arguments)
    disable_progress_bar()  # transformers draws one per file; ours are enough
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    command = {
        "evaluate": measure,
        "aligned": aligned.run,
        "drafter": own.run,
        "head": head.run,
        "widen": widen,
    }[options.command]
    interruption.by_signals()
    try:
        command(options)
    except SettingError as error:
        raise SystemExit(f"covey: {error}") from None
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def widen(options: argparse.Namespace) -> None:
    head_model.widen(options.folder, options.out)


def measure(options: argparse.Namespace) -> None:
    model = architecture.load_model(options.out, TARGET).to(options.device)
    drafters = {name: architecture.load_model(options.out, name).to(options.device) for name in architecture.DRAFTERS}
    target = texts.open_target(str(options.out / TARGET / "1"), torch.device(options.device), WINDOW)
    report: chains.Report = {}
    for domain, samples in texts.continued(target, options.tokens, options.seed).items():
        report[domain] = chains.of_others(model, drafters, samples, own.looked_up(samples))
    chains.show(report, Console())


if __name__ == "__main__":
    main(sys.argv[1:])

"""`python -m covey_training aligned`: its options and its output."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel

from covey.launcher.options import Options
from covey.models.loading import choose_device, choose_dtype
from covey_training.aligned.build import Pair, build
from covey_training.aligned.folders import check_free, save
from covey_training.aligned.shapes import SIZES, default_layers, shape

WIDE = 512  # narrower passes are slower with two threads, and much slower if another process uses a core


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=SIZES, required=True, help="a named shape")
    parser.add_argument(
        "--agreement", type=float, required=True, help="how often the drafter's token is the target's, for example 0.7"
    )
    parser.add_argument("--layers", type=int, help="layers of the drafter (default: a tenth of the target's cost)")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16, float16 or float32")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="empty or new folder to write to")


def run(options: argparse.Namespace) -> None:
    """Build, save and show the pair that the options describe."""
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device)
    config = shape(options.size)
    layers = default_layers(config) if options.layers is None else options.layers
    check_free(options.out)
    if device.type == "cpu" and config.hidden_size < WIDE:
        torch.set_num_threads(1)
    pair = build(config, layers, options.agreement, options.seed, device, dtype)
    profile = save(pair, options.out, Options().repository_folder() / "target" / "1")
    console = Console()
    console.print(shown(pair))
    console.print(f"make serve PROFILE={shlex.quote(str(profile.resolve()))}", soft_wrap=True, highlight=False)


def shown(pair: Pair) -> Table:
    table = Table("measure", "value", title="Aligned pair")
    for name, model in (("target", pair.target), ("drafter", pair.drafter)):
        table.add_row(f"{name}'s parameters, layers", f"{parameters(model):,}, {model.config.num_hidden_layers}")
    table.add_row("damping of the layers that the drafter lacks", f"{pair.damping:.5f}")
    table.add_row("agreement at temperature 1, one noise", f"{pair.measured.coupled:.3f}")
    table.add_row("agreement of the likeliest tokens", f"{pair.measured.greedy:.3f}")
    table.add_row("target's entropy, bits per token", f"{pair.measured.entropy:.2f}")
    return table


def parameters(model: PreTrainedModel) -> int:
    return sum(parameter.numel() for parameter in model.parameters())

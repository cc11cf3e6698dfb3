"""`python -m covey_training`: tokenizer, then target, then drafters, then evaluate; or one of the others below.

    python -m covey_training target --data data --minutes 90

`--data` holds the corpora (`covey_training.corpora` names the files), `--out` is the model repository whose version
folders receive the weights, and `--runs` keeps checkpoints: the same command again goes on where it was stopped.

    python -m covey_training aligned --size tiny --agreement 0.7 --out pair

makes a pair of random weights to measure with, and learns nothing.

    python -m covey_training drafter --target /models/mine --out drafter --minutes 5

distils a small drafter for any target from the target's own samples.

    python -m covey_training head --target /models/mine --out head --minutes 30

trains an EAGLE-3 head, which reads the target's hidden states, on them.
"""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from tokenizers import Tokenizer
from transformers import LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from covey import prompts
from covey.contracts.errors import SettingError
from covey.models.identity import of_model
from covey_client import interruption
from covey_client.progress import Steps, status
from covey_training import architecture, chains, corpora, distil, head, own, target, teacher, texts, tokenizer
from covey_training.aligned import command as aligned
from covey_training.optimiser import Budget
from covey_training.sampling import sample
from covey_training.streams import Mixture, Stream, encode

TARGET = "target"
HELD_OUT_ROWS = 8
NEED_DATA = ("tokenizer", "target", "drafters")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m covey_training", description=__doc__.splitlines()[0])
    machine = argparse.ArgumentParser(add_help=False)
    machine.add_argument("--seed", type=int, default=0)
    machine.add_argument("--device", default="auto", help="auto, cpu or cuda")
    common = argparse.ArgumentParser(add_help=False, parents=[machine])
    common.add_argument("--data", type=Path, help="folder of the corpora")
    common.add_argument("--out", type=Path, default=Path("model_repository"), help="model repository to write to")
    common.add_argument("--runs", type=Path, default=Path("runs/training"), help="folder of checkpoints and histories")
    budget = argparse.ArgumentParser(add_help=False)
    given = budget.add_mutually_exclusive_group()
    given.add_argument("--minutes", type=float, help="stop, decayed, after so long on the clock")
    given.add_argument("--steps", type=int, help="stop after so many steps: reproducible")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("tokenizer", parents=[common], help="learn the vocabulary")
    taught = commands.add_parser("target", parents=[common, budget], help="train the target")
    taught.add_argument("--rows", type=int, default=target.TargetSettings.rows, help="windows of a step")
    drafters = commands.add_parser("drafters", parents=[common, budget], help="distil the drafters")
    drafters.add_argument("--rows", type=int, default=distil.DistilSettings.rows, help="windows of a step")
    drafters.add_argument(
        "--samples",
        type=int,
        default=teacher.LessonSettings.samples,
        help="texts of each domain, by the target",
    )
    drafters.add_argument(
        "--corpus-tokens", type=int, default=teacher.LessonSettings.corpus_tokens, help="tokens of each domain's corpus"
    )
    measured = commands.add_parser("evaluate", parents=[common], help="measure acceptance on the bundled prompts")
    measured.add_argument("--tokens", type=int, default=96, help="tokens of each sample")
    single = commands.add_parser("drafter", parents=[machine, budget], help="distil a drafter for any target")
    texts.add_arguments(single)
    reading = commands.add_parser("head", parents=[machine, budget], help="train an EAGLE-3 head for any plain target")
    head.add_arguments(reading)
    synthetic = commands.add_parser("aligned", parents=[machine], help="make a synthetic pair to measure with")
    aligned.add_arguments(synthetic)
    options = parser.parse_args(arguments)
    if options.command in NEED_DATA and options.data is None:
        parser.error(f"{options.command} needs --data, the folder of the corpora")
    if (
        options.command in ("target", "drafters", "drafter", "head")
        and options.minutes is None
        and options.steps is None
    ):
        parser.error(f"{options.command} needs a budget: --minutes or --steps")
    return options


def main(arguments: list[str]) -> None:
    options = parse(arguments)
    disable_progress_bar()  # transformers draws one for every file; the module's own bars are enough
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    command = {
        "tokenizer": learn_tokenizer,
        "target": train_target,
        "drafters": train_drafters,
        "evaluate": measure,
        "aligned": aligned.run,
        "drafter": own.run,
        "head": head.run,
    }[options.command]
    interruption.by_signals()
    try:
        command(options)
    except (SettingError, corpora.MissingCorpus) as error:
        raise SystemExit(f"covey: {error}") from None
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def learn_tokenizer(options: argparse.Namespace) -> None:
    with status(Console(stderr=True), "learning the vocabulary"):
        learned = tokenizer.train(corpora.split(domain, options.data)[0] for domain in prompts.DOMAINS)
    tokenizer.save(learned, tokenizer_folder(options), max_length=architecture.POSITIONS)


def train_target(options: argparse.Namespace) -> None:
    vocabulary = tokenizer_folder(options)
    learned = read_tokenizer(vocabulary)
    training, validation = read_streams(learned, options)
    torch.manual_seed(options.seed)
    end_of_text = tokenizer.end_of_text(learned)
    model = architecture.target(learned.get_vocab_size(), end_of_text).to(options.device)
    target.train(
        model,
        Mixture(training, target.TURNS),
        {domain: held_out_rows(stream) for domain, stream in validation.items()},
        Budget(steps=options.steps, minutes=options.minutes),
        options.runs / "target.pt",
        settings=replace(target.TargetSettings(), rows=options.rows),
    )
    architecture.save_model(model, options.out, TARGET, vocabulary)


def train_drafters(options: argparse.Namespace) -> None:
    vocabulary = options.out / TARGET / "1"
    learned = read_tokenizer(vocabulary)
    model = architecture.load_model(options.out, TARGET).to(options.device)
    lessons = {domain: read_lessons(domain, model, learned, options) for domain in prompts.DOMAINS}
    by_drafter = {architecture.GENERAL: teacher.Lessons.join(list(lessons.values()))}
    own = [(architecture.SPECIALISTS[domain], lesson) for domain, lesson in lessons.items()]
    by_drafter |= {name: lesson for name, lesson in own if name in architecture.DRAFTERS}
    students = {name: new_drafter(model, options).to(options.device) for name in architecture.DRAFTERS}
    distil.train(
        students,
        by_drafter,
        model,
        Budget(steps=options.steps, minutes=options.minutes),
        options.runs / "drafters.pt",
        seed=options.seed,
        settings=replace(distil.DistilSettings(), rows=options.rows),
    )
    for name, student in students.items():
        architecture.save_model(student, options.out, name, vocabulary)


def new_drafter(model: LlamaForCausalLM, options: argparse.Namespace) -> LlamaForCausalLM:
    torch.manual_seed(options.seed)
    student = architecture.drafter(model.config.vocab_size, model.config.eos_token_id)
    distil.start_from_target(student, model)
    return student


def measure(options: argparse.Namespace) -> None:
    model = architecture.load_model(options.out, TARGET).to(options.device)
    drafters = {name: architecture.load_model(options.out, name).to(options.device) for name in architecture.DRAFTERS}
    vocabulary = tokenizer.load(options.out / TARGET / "1")
    report: chains.Report = {}
    for domain in prompts.DOMAINS:
        samples = sample(model, vocabulary, prompts.load(domain), tokens=options.tokens, seed=options.seed)
        report[domain] = chains.of_others(model, drafters, samples, own.looked_up(samples))
    chains.show(report, Console())


def tokenizer_folder(options: argparse.Namespace) -> Path:
    folder: Path = options.runs / "tokenizer"
    return folder


def read_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing: run `python -m covey_training tokenizer` first")
    return Tokenizer.from_file(str(path))


def read_streams(learned: Tokenizer, options: argparse.Namespace) -> tuple[dict[str, Stream], dict[str, Stream]]:
    """Return (training, validation) streams per domain."""
    end_of_text = tokenizer.end_of_text(learned)
    both: tuple[dict[str, Stream], dict[str, Stream]] = ({}, {})
    with Steps() as bar:
        for domain in bar.track(prompts.DOMAINS, description="domains read"):
            for streams, documents in zip(both, corpora.split(domain, options.data)):
                streams[domain] = Stream(encode(learned, documents, end_of_text), options.seed)
    return both


def held_out_rows(stream: Stream, length: int = 1024) -> torch.Tensor:
    rows = [torch.from_numpy(stream.read(row * length, length + 1)) for row in range(HELD_OUT_ROWS)]
    return torch.stack(rows)


def read_lessons(
    domain: str, model: LlamaForCausalLM, learned: Tokenizer, options: argparse.Namespace
) -> teacher.Lessons:
    """Return the domain's lessons, kept beside the checkpoints: a resumed run must not pay for them, or change them."""
    folder = options.out / TARGET / "1"

    def make() -> dict[str, torch.Tensor]:
        documents, _ = corpora.split(domain, options.data)
        stream = Stream(encode(learned, documents, tokenizer.end_of_text(learned)), options.seed + 1)
        amounts = teacher.LessonSettings(corpus_tokens=options.corpus_tokens, samples=options.samples)
        vocabulary = tokenizer.load(folder)
        made = teacher.prepare(model, vocabulary, domain, documents, stream, seed=options.seed, settings=amounts)
        return {"tokens": made.tokens, "hidden": made.hidden}

    made_with = of_model(folder, [options.samples, options.corpus_tokens, options.seed])
    found = texts.kept(options.runs / "lessons" / f"{domain}.pt", made_with, make)
    return teacher.Lessons(found["tokens"], found["hidden"])


if __name__ == "__main__":
    main(sys.argv[1:])

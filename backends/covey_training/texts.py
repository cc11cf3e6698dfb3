"""Texts that any target writes: for training and, held out, for measuring. They are kept in a file of the run.

A model with a chat template asks the questions itself: it continues where its template lets a user begin, and then
answers its own text. If a file of prompts is given, every second question is a line of it. Other models continue
prompts: the bundled ones, or lines of a file. Every tenth text is held out.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from covey import prompts
from covey.contracts.errors import SettingError
from covey.launcher import hub
from covey.models import loading, refusals
from covey.models.identity import digest, files_of
from covey_client.progress import Steps
from covey_training.chains import DEPTH, Sample
from covey_training.interrupts import held_back
from covey_training.writer import Text, Writer

HELD_OUT = 10  # one of this many texts is held out
SAMPLES = 1024  # default number of texts, if neither --samples nor --minutes is given
ITS_OWN = "its own questions"
QUESTION_TOKENS, LEAST_QUESTION = 64, 16  # the most that a question has, and the least that must fit
TOLD_SECONDS = 5.0  # between two lines of progress
SAVED_SECONDS = 10.0


@dataclass(frozen=True)
class Target:
    """A target's folder. Only its small files have been read."""

    folder: Path
    device: torch.device
    tokenizer: PreTrainedTokenizerBase
    window: int  # tokens of a lesson

    @cached_property
    def config(self) -> PretrainedConfig:
        return loading.read_config(self.folder)

    @property
    def ends(self) -> tuple[int, ...]:
        return loading.find_end_ids(self.folder, self.config)

    def shape(self) -> PreTrainedModel:
        """Return the model without its weights."""
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(self.config)
        return model

    def load(self, dtype: torch.dtype) -> PreTrainedModel:
        model = loading.load_module(self.folder, self.config, dtype, self.device, attention_of(self.config))
        assert isinstance(model, PreTrainedModel)
        return model

    def encoded(self, prompt: str, most: int) -> list[int]:
        ids: list[int] = self.tokenizer(prompt).input_ids
        return ids[-most:]

    def asked(self, question: str, most: int) -> list[int]:
        """Return a user's question, or its end if it is too long, in the chat template."""
        before, after = self.around_a_question
        ids: list[int] = self.tokenizer(question, add_special_tokens=False).input_ids
        return [*before, *ids[-(most - len(before) - len(after)) :], *after]

    @cached_property
    def around_a_question(self) -> tuple[list[int], list[int]]:
        """Return the tokens that the chat template puts before and after a user's words, or none without a template."""
        if not getattr(self.tokenizer, "chat_template", None):
            return [], []
        mark = "\N{OBJECT REPLACEMENT CHARACTER}"
        said = [{"role": "user", "content": mark}]
        try:
            whole = str(self.tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True))
        except Exception:  # a template may raise any error
            return [], []
        if whole.count(mark) != 1:
            return [], []
        before, after = (self.tokenizer(part, add_special_tokens=False).input_ids for part in whole.split(mark))
        return before, after


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", required=True, metavar="MODEL", help="folder, or name on the Hugging Face hub")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder to write the drafter to")
    asked = (
        "a prompt in each line; in a .jsonl file, a JSON string. A chat model answers these and its own questions in "
        "turn (default: only its own; other models continue the bundled prompts)"
    )
    parser.add_argument("--prompts", type=Path, metavar="FILE", help=asked)
    told = "conversations to learn from as well, in OpenAI's form: a line of JSON with `messages` for each"
    parser.add_argument("--texts", type=Path, metavar="FILE.jsonl", help=told)
    many = f"most texts that the target writes (default: {SAMPLES}; with --minutes, as many as time allows)"
    parser.add_argument("--samples", type=int, help=many)
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of each text (default: 128)")
    parser.add_argument("--window", type=int, default=256, help="tokens of a lesson, with its prompt (256)")
    parser.add_argument("--rows", type=int, default=4, help="lessons per step")


def open_target(name: str, device: torch.device, window: int) -> Target:
    folder = Path(hub.folder(name))
    refusals.by_files(folder)
    config = loading.read_config(folder)
    return Target(folder, device, _tokenizer(folder), min(window, loading.find_max_positions(config)))


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers raises many kinds; all mean that it cannot read the tokenizer
        raise SettingError(f"{folder}: cannot read its tokenizer: {error}; copy its files again") from error


def attention_of(config: PretrainedConfig) -> str:
    """Return transformers' faster attention if the target's class supports it, as that of GPT-OSS does not."""
    return "sdpa" if MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._supports_sdpa else "eager"


def read_prompts(path: Path | None) -> dict[str, list[str]]:
    """Return the lines of a file under its name, or the bundled prompts under their domains."""
    if path is None:
        return {domain: prompts.load(domain) for domain in prompts.DOMAINS}
    lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    if path.suffix == ".jsonl":
        lines = [text for line in lines if (text := _json_string(path, line)).strip()]
    if len(lines) < HELD_OUT:
        raise SettingError(
            f"{path}: {len(lines)} prompts, allowed: {HELD_OUT} lines or more, a tenth of them to measure"
        )
    return {path.name: lines}


def _json_string(path: Path, line: str) -> str:
    with suppress(ValueError):
        if isinstance(found := json.loads(line), str):
            return found
    raise SettingError(f"{path}: got {line[:60]!r}, allowed: a JSON string in each line")


@dataclass(frozen=True, slots=True)
class Written:
    """A text that the target wrote."""

    group: str
    held_out: bool
    sample: Sample


class Kept:
    """The texts of a run by number. Each is a line of JSON in a file, so that a stopped run can resume."""

    def __init__(self, path: Path, made_with: str) -> None:
        self._path = path
        self.texts: dict[int, Written] = {}
        self._unsaved: list[str] = []
        self._saved = time.monotonic()
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(made_with) + "\n", encoding="utf-8")
            return
        raw = path.read_text(encoding="utf-8")
        whole = raw[: raw.rfind("\n") + 1]
        if whole != raw:  # the run was killed while it wrote the last line
            path.write_text(whole, encoding="utf-8")
        first, *lines = whole.splitlines() or [""]
        if first != json.dumps(made_with):
            raise SettingError(
                f"{path} was made with another target, other settings or another version of Covey: remove it or choose "
                "another --out"
            )
        for line in lines:
            number, group, held_out, *sample = json.loads(line)
            self.texts[number] = Written(group, held_out, Sample(*sample))

    def add(self, number: int, text: Written) -> None:
        self.texts[number] = text
        line = [number, text.group, text.held_out, text.sample.prompt, text.sample.continuation]
        self._unsaved.append(json.dumps(line) + "\n")
        if time.monotonic() - self._saved > SAVED_SECONDS:
            self.save()

    def save(self) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(self._unsaved)
        self._unsaved.clear()
        self._saved = time.monotonic()


class _Asked:
    """The texts that the target will write."""

    def __init__(
        self, target: Target, options: argparse.Namespace, kept: Kept, groups: dict[str, list[str]], itself: bool
    ) -> None:
        """`itself` says that the target asks questions itself."""
        self._itself = itself
        self._target, self._tokens, self._seed, self._kept = target, options.tokens, options.seed, kept
        self._most = target.window - options.tokens
        if self._most < 1:
            raise SettingError(f"--tokens: got {options.tokens}, allowed: fewer than {target.window} for this target")
        self._ends, self._special = frozenset(target.ends), frozenset(target.tokenizer.all_special_ids)
        self._prompts = [(name, prompt, True) for name, group in groups.items() for prompt in group[::HELD_OUT]]
        self._teaching = [
            (name, prompt, False) for name, group in groups.items() for at, prompt in enumerate(group) if at % HELD_OUT
        ]

    @property
    def measured(self) -> int:
        """Return how many of the first texts are only for measuring."""
        return len(self._prompts)

    def texts(self, most: int) -> Iterator[Text]:
        """Yield those of the first `most` texts that are not written yet."""
        for number in range(most):
            if number not in self._kept.texts:
                yield self._text(number)

    def _text(self, number: int) -> Text:
        measures = number < self.measured
        if self._itself and not measures and (number % 2 or not self._teaching):
            return self._question(number)
        given = self._prompts[number] if measures else self._of_teaching(number // 2 if self._itself else number)
        group, prompt, held_out = given
        tokens = (self._target.asked if self._itself else self._target.encoded)(prompt, self._most)
        return self._answer(number, group, held_out, tokens)

    def _of_teaching(self, number: int) -> tuple[str, str, bool]:
        return self._teaching[number % len(self._teaching)]

    def _question(self, number: int) -> Text:
        before, after = self._target.around_a_question

        def asked(tokens: list[int]) -> Text | None:
            question = [token for token in tokens if token not in self._ends]
            if not question or not self._special.isdisjoint(question):
                self._kept.add(number, Written(ITS_OWN, False, Sample([], [])))  # a resumed run will not ask again
                return None
            held_out = (number // 2 if self._teaching else number) % HELD_OUT == 0
            return self._answer(number, ITS_OWN, held_out, [*before, *question, *after])

        most = min(QUESTION_TOKENS, self._most - len(before) - len(after))
        return Text(before, most, 2 * (self._seed << 32 | number), asked)

    def _answer(self, number: int, group: str, held_out: bool, prompt: list[int]) -> Text:
        def done(tokens: list[int]) -> None:
            self._kept.add(number, Written(group, held_out, Sample(prompt, tokens)))

        return Text(prompt, self._tokens, 2 * (self._seed << 32 | number) + 1, done, partly=True)


def lessons(
    target: Target, options: argparse.Namespace, path: Path, settings: Sequence[Any] = (), seconds: float | None = None
) -> tuple[torch.Tensor, dict[str, list[Sample]]]:
    """Return the windows to learn from, and the samples to measure on by group. The target writes until it has
    written enough texts, or until `seconds` have passed. A run with the same `settings` resumes from the texts in
    `path`."""
    around = sum(map(len, target.around_a_question))
    room = target.window - options.tokens - around
    itself = around > 0 and room >= LEAST_QUESTION
    groups = {} if itself and options.prompts is None else read_prompts(options.prompts)
    asked_for = [groups, itself, options.tokens, options.window, options.seed, *settings]
    told = [] if options.texts is None else _told(target, options.texts)  # before minutes of writing: it may be refused
    kept = Kept(path, digest(asked_for, files_of(target.folder)))
    asked = _Asked(target, options, kept, groups, itself)
    most = asked.measured + (options.samples or (SAMPLES if seconds is None else 1 << 31))
    if seconds != 0 and len(kept.texts) < most:
        _write(target, asked.texts(most), kept, itself and not groups, most, seconds)
    return _windows(target, kept, told), _held_out(kept)


def continued(target: Target, tokens: int, seed: int) -> dict[str, list[Sample]]:
    """Return the target's continuations of each bundled prompt, by domain."""
    found: dict[str, list[Sample]] = {domain: [] for domain in prompts.DOMAINS}
    most = target.window - tokens
    asked = [(domain, target.encoded(text, most)) for domain in found for text in prompts.load(domain)]

    def text(number: int, domain: str, prompt: list[int]) -> Text:
        return Text(prompt, tokens, seed << 32 | number, lambda its: found[domain].append(Sample(prompt, its)))

    writer = Writer(target.folder, device=target.device.type, longest=target.window)
    with Steps(apart=TOLD_SECONDS) as bar:
        task = bar.add_task("target's samples", total=len(asked))
        for _ in writer.write(text(number, *each) for number, each in enumerate(asked)):
            bar.update(task, completed=sum(map(len, found.values())))
    return found


def _write(target: Target, texts: Iterator[Text], kept: Kept, itself: bool, most: int, seconds: float | None) -> None:
    console, began = Console(stderr=True), time.monotonic()
    writer: Writer | None = None
    what = "asks itself questions and answers them" if itself else "continues prompts"
    console.print(f"The target {what}. Ctrl-C keeps the texts; the same command resumes.", soft_wrap=True)
    try:
        with Steps(console, apart=TOLD_SECONDS) as bar, held_back() as interrupted:
            task, written = bar.add_task("target: loading", total=1.0), 0
            writer = Writer(target.folder, device=target.device.type, longest=target.window)
            loaded = time.monotonic()
            if seconds is not None and loaded - began > seconds / 2:
                raise SettingError(f"this target takes {loaded - began:.0f} s to load here: give more --minutes")
            for new in writer.write(texts):
                written += new
                now = time.monotonic()
                done = len(kept.texts) / most if seconds is None else (now - began) / seconds
                rate = written / max(now - loaded, 1e-9)
                said = f"target: {len(kept.texts)} texts, {written} tokens, {rate:.0f} tokens/s"
                bar.update(task, completed=min(1.0, done), description=said)
                if interrupted.is_set() or (seconds is not None and now - began > seconds):
                    writer.cut()
                    break
    finally:
        kept.save()
        writer = None
        gc.collect()  # a runner has reference cycles
        if target.device.type == "cuda":
            torch.cuda.empty_cache()


def _told(target: Target, path: Path) -> list[int]:
    """Return the conversations of a file in the chat template, one after the other."""
    joined: list[int] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            text = target.tokenizer.apply_chat_template(json.loads(line)["messages"], tokenize=False)
        except Exception as error:  # a template may raise any error
            raise SettingError(f"{path}, line {number}: no conversation for this chat template: {error}") from error
        joined += target.tokenizer(str(text), add_special_tokens=False).input_ids
    return joined


def _windows(target: Target, kept: Kept, told: Sequence[int] = ()) -> torch.Tensor:
    """Return the texts that were written, and then those that were `told`, cut into windows."""
    ends = list(target.ends[:1])
    taught = [text.sample for _, text in sorted(kept.texts.items()) if text.sample.prompt and not text.held_out]
    joined = [token for one in taught for token in (*one.prompt, *one.continuation, *ends)]
    joined += told
    if len(joined) < target.window:
        raise SettingError(
            f"the target finished only {len(joined)} tokens of texts; learning needs {target.window}: give more "
            "--minutes or --samples, or fewer --tokens for each text"
        )
    return torch.tensor(joined[: len(joined) // target.window * target.window]).view(-1, target.window)


def _held_out(kept: Kept) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for _, text in sorted(kept.texts.items()):
        if text.held_out and len(text.sample.continuation) >= DEPTH:
            found.setdefault(text.group, []).append(text.sample)
    if not found:
        raise SettingError("the target wrote no text to measure on: give more --minutes or --samples")
    return found

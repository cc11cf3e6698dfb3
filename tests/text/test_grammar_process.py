"""Grammars that are compiled by a process of its own, and what is remembered of them."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from covey.contracts.errors import Overloaded
from covey.process import interpreter
from covey.text import grammar, grammar_process, grammar_verdicts
from covey.text.grammar_process import Compiler
from covey.text.grammar_verdicts import GIVEN_UP_SECONDS, Verdicts
from tests.bundled import MODELS

FOLDER, VOCAB, ENDS = str(MODELS / "target" / "1"), 4096, (0,)


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    made = Compiler(FOLDER, VOCAB)
    yield made
    made.close()


def test_it_compiles_as_it_is_done_here(compiler: Compiler) -> None:
    tokenizer = grammar.tokenizer_of(FOLDER, VOCAB, ENDS)
    for name, text in (("grammar_json", "{}"), ("grammar_regex", "a+"), ("grammar_lark", 'start: "a"')):
        assert compiler.compiled(name, text, ENDS) == grammar.compiled(name, text, tokenizer)
    for name, text in (("grammar_json", "{"), ("grammar_regex", "(a"), ("grammar_json", '{"$ref": "#"}')):
        with pytest.raises(ValueError, match=r".+") as here:
            grammar.compiled(name, text, tokenizer)
        with pytest.raises(ValueError, match=r".+") as there:
            compiler.compiled(name, text, ENDS)
        assert str(there.value) == str(here.value)


def test_one_that_ends_is_started_again(compiler: Compiler) -> None:
    compiler.compiled("grammar_json", "{}", ENDS)
    first = compiler.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    try:
        compiler.compiled("grammar_json", "{}", ENDS)
    except Overloaded:  # it was still there when it was asked
        compiler.compiled("grammar_json", "{}", ENDS)
    assert compiler.pid not in (None, first)


def test_it_has_not_even_the_server_s_secrets(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler.close()
    monkeypatch.setenv("COVEY_ADMIN_SECRET", "hidden")
    compiler.compiled("grammar_json", "{}", ENDS)
    with open(f"/proc/{compiler.pid}/environ", "rb") as environment:
        assert b"hidden" not in environment.read()


def test_an_answer_that_breaks_off_says_nothing_of_the_grammar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process may be ended in the middle of a long one."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nprintf '\\0\\0\\0\\100half' >&$3\n")
    program.chmod(0o700)
    monkeypatch.setattr(interpreter, "python", lambda: str(program))
    made = Compiler(FOLDER, VOCAB)
    with pytest.raises(Overloaded, match="does not answer"):
        made.compiled("grammar_json", "{}", ENDS)
    made.close()


def test_an_answer_that_comes_too_late_is_not_the_next_one_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nsleep 30\n")
    program.chmod(0o700)
    monkeypatch.setattr(grammar_process, "ANSWER_SECONDS", 0.1)
    with monkeypatch.context() as slow:
        slow.setattr(interpreter, "python", lambda: str(program))
        made = Compiler(FOLDER, VOCAB)
        with pytest.raises(Overloaded, match="no answer within"):
            made.compiled("grammar_json", "{}", ENDS)
    assert made.pid is None
    monkeypatch.setattr(grammar_process, "ANSWER_SECONDS", 60.0)
    assert made.compiled("grammar_json", "{}", ENDS)
    made.close()


def test_only_the_last_verdicts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_verdicts, "MOST", 2)
    counted = Counted()
    verdicts = Verdicts(counted.compiled)
    for text in ("a", "b", "a", "c", "a", "b"):
        verdicts.compiled("grammar_regex", text, ENDS)
    assert counted.asked == ["a", "b", "c", "b"]


def _spin(*_: object) -> str:
    while True:
        pass


def _hoard(*_: object) -> str:
    return str(len(bytearray(grammar_process.MEMORY * 2)))


@pytest.mark.parametrize(("compiling", "said"), [(_spin, "of a processor"), (_hoard, "of memory")])
def test_what_no_limit_has_foreseen_is_given_up(compiling: object, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "compiled", compiling)
    monkeypatch.setattr(grammar_process, "PROCESSOR_SECONDS", 0.1)
    asked = {"folder": FOLDER, "vocab_size": VOCAB, "end_ids": ENDS, "name": "grammar_regex", "text": "a"}
    assert said in json.loads(grammar_process._answer(asked))["guard"]  # type: ignore[arg-type]


class Counted:
    """A compiler that counts, refuses what begins with `bad` and gives up what begins with `slow`."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def compiled(self, _: str, text: str, __: tuple[int, ...]) -> str:
        self.asked.append(text)
        if text.startswith("slow"):
            raise Overloaded("given up")
        if text.startswith("bad"):
            raise ValueError("another one")
        return text


def test_what_is_known_is_not_compiled_again() -> None:
    counted, now = Counted(), [0.0]
    verdicts = Verdicts(counted.compiled, lambda: now[0])
    for text, error in (("good", None), ("bad", ValueError), ("slow", Overloaded)):
        assert not verdicts.knows("grammar_regex", text, ENDS)
        for _ in range(3):
            if error is None:
                assert verdicts.compiled("grammar_regex", text, ENDS) == grammar.of_regex(text)
            else:
                with pytest.raises(error):
                    verdicts.compiled("grammar_regex", text, ENDS)
        assert verdicts.knows("grammar_regex", text, ENDS)
        assert not verdicts.knows("grammar_regex", text, (1,))
    assert counted.asked == ["good", "bad", "slow"]
    now[0] = GIVEN_UP_SECONDS + 1.0
    assert verdicts.knows("grammar_regex", "bad", ENDS)
    assert not verdicts.knows("grammar_regex", "slow", ENDS)


def test_who_asks_for_a_known_one_does_not_wait_for_a_new_one() -> None:
    held, begun = threading.Event(), threading.Event()

    def compiled(_: str, text: str, __: tuple[int, ...]) -> str:
        if text == "new":
            begun.set()
            held.wait()
        return text

    verdicts = Verdicts(compiled)
    verdicts.compiled("grammar_regex", "known", ENDS)
    waiting = threading.Thread(target=verdicts.compiled, args=("grammar_regex", "new", ENDS))
    waiting.start()
    begun.wait()
    assert verdicts.compiled("grammar_regex", "known", ENDS)
    held.set()
    waiting.join()

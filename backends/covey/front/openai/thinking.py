"""Parses reasoning: a model's thoughts before its answer, between `<think>` and `</think>`. A grammar for the answer
does not restrict them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from covey.front.openai.delta import AnswerParser, Delta
from covey.front.openai.marks import Marks, begun
from covey_client.response import Chunk

BEGIN, END = "<think>", "</think>"
BEFORE, THINKING, BEHIND, ANSWER = "before", "thinking", "behind", "answer"


@dataclass(frozen=True)
class Thinking:
    """How an answer may begin with reasoning."""

    begun: bool = False  # by the prompt, so the answer begins with thoughts

    def after(self, prompt: str) -> Thinking | None:
        """Return how an answer to this prompt may begin; None if the prompt has ended the reasoning."""
        prompt = prompt.rstrip()
        return None if prompt.endswith(END) else Thinking(prompt.endswith(BEGIN))

    def rules(self, marks: Marks) -> tuple[str, str]:
        """Return the beginning of a grammar's `start`, and the rules for it."""
        first = "" if self.begun else f"{marks.terms(BEGIN)} "
        if END in marks.ids:
            inside = f"thinks: {marks.free('THOUGHT', END)} {marks.terms(END)}\nTHOUGHT: /(.|\\n)+/"
        else:
            inside = f'thinks[lazy]: THOUGHT "{END}"\nTHOUGHT: /(.|\\n)*/'
        space = "SPACE: /[ \\t\\r\\n]+/"
        return "thought " if self.begun else "thought? ", f"thought: {first}thinks SPACE?\n{inside}\n{space}"


def known(names: Collection[str]) -> Thinking | None:
    """Return how a model thinks if one of these texts has the marks; None if none has."""
    return Thinking() if any(END in name for name in names) else None


class ReasoningParser:
    """Parses one choice's answer."""

    def __init__(self, thinking: Thinking, answer: AnswerParser | None) -> None:
        """`answer` parses the text after the reasoning."""
        self._answer = answer
        self._state, self._text = THINKING if thinking.begun else BEFORE, ""
        self._said = False  # whether any thoughts have come

    def feed(self, chunk: Chunk) -> Delta:
        if self._state != ANSWER:
            thoughts, text = self._split(chunk.text, bool(chunk.finish_reason))
            chunk = replace(chunk, text=text, tokens=() if self._state == THINKING else chunk.tokens)
        else:
            thoughts = ""
        if self._answer is None:
            return Delta(chunk.text, finish_reason=chunk.finish_reason, reasoning=thoughts)
        delta = self._answer.feed(chunk)
        delta.reasoning = thoughts
        return delta

    def _split(self, text: str, last: bool) -> tuple[str, str]:
        """Split new text into reasoning and answer."""
        self._text += text
        if self._state == BEFORE:
            found = self._text.lstrip()
            if found.startswith(BEGIN):
                self._state, self._text = THINKING, found[len(BEGIN) :]
            elif last or not BEGIN.startswith(found):
                self._state = ANSWER
                return "", self._taken(len(self._text))
        thoughts = self._thought(last) if self._state == THINKING else ""
        if self._state == BEHIND:
            self._text = self._text.lstrip()
            if self._text:
                self._state = ANSWER
                return thoughts, self._taken(len(self._text))
        return thoughts, ""

    def _thought(self, last: bool) -> str:
        """Return the reasoning so far, without white space at its ends."""
        if not self._said:
            self._text = self._text.lstrip()
        before, end, behind = self._text.partition(END)
        if end:
            self._state, self._text = BEHIND, behind
            return before.rstrip()
        held = 0 if last else begun(before, END)
        found = self._taken(len(before[: len(before) - held].rstrip()))
        self._said = self._said or bool(found)
        return found

    def _taken(self, size: int) -> str:
        found, self._text = self._text[:size], self._text[size:]
        return found

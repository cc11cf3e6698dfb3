"""Parses reasoning: what a model thinks before it answers, between `<think>` and `</think>` in its text. A grammar for
the answer leaves it free."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from covey.front.openai.delta import AnswerParser, Delta
from covey.front.openai.marks import Marks, begun
from covey_client.response import Chunk

MARKS = (("<think>", "</think>"), ("<seed:think>", "</seed:think>"), ("[THINK]", "[/THINK]"))
BEFORE, THINKING, BEHIND, ANSWER = "before", "thinking", "behind", "answer"


@dataclass(frozen=True)
class Thinking:
    """The marks of reasoning, and whether the prompt has begun it."""

    begin: str
    end: str
    begun: bool = False  # by the prompt: the answer begins with thoughts

    def after(self, prompt: str) -> Thinking | None:
        """Return how an answer to this prompt may begin; None where the prompt has ended the reasoning."""
        prompt = prompt.rstrip()
        return None if prompt.endswith(self.end) else replace(self, begun=prompt.endswith(self.begin))

    def rules(self, marks: Marks) -> tuple[str, str]:
        """Return what a grammar's `start` begins with, and the rules for it."""
        first = "" if self.begun else f"{marks.terms(self.begin)} "
        if self.end in marks.ids:
            inside = f"thinks: {marks.free('THOUGHT', self.end)} {marks.terms(self.end)}\nTHOUGHT: /(.|\\n)+/"
        else:
            inside = f'thinks[lazy]: THOUGHT "{self.end}"\nTHOUGHT: /(.|\\n)*/'
        space = "SPACE: /[ \\t\\r\\n]+/"
        return "thought " if self.begun else "thought? ", f"thought: {first}thinks SPACE?\n{inside}\n{space}"


def known(names: Collection[str]) -> Thinking | None:
    """Return the reasoning marks that occur in one of these texts of a model; None where none do."""
    return next((Thinking(*marks) for marks in MARKS if any(marks[1] in name for name in names)), None)


@dataclass(frozen=True)
class Hidden:
    """Reasoning marks that are special tokens, which a text leaves out."""

    marks: Mapping[int, str]
    decode: Callable[[Sequence[int]], str]

    def shown(self, chunk: Chunk) -> str:
        """Return the text of a chunk with its marks, each before the text that the tokens behind it decode to."""
        text = chunk.text
        for place in reversed([place for place, token in enumerate(chunk.tokens) if token in self.marks]):
            behind = self.decode(chunk.tokens[place + 1 :])
            most = min(len(behind), len(chunk.text))  # the last of it may have been held back
            size = next(size for size in range(most, -1, -1) if chunk.text.endswith(behind[:size]))
            at = len(chunk.text) - size
            text = text[:at] + self.marks[chunk.tokens[place]] + text[at:]
        return text


class ReasoningParser:
    """Parses one choice's answer."""

    def __init__(self, thinking: Thinking, answer: AnswerParser | None, hidden: Hidden | None = None) -> None:
        """`answer` parses what follows the reasoning."""
        self._marks, self._answer, self._hidden = thinking, answer, hidden
        self._state, self._text = THINKING if thinking.begun else BEFORE, ""
        self._said = False  # anything of the thoughts

    def feed(self, chunk: Chunk) -> Delta:
        if self._state != ANSWER:
            thoughts, text = self._split(
                self._hidden.shown(chunk) if self._hidden else chunk.text, bool(chunk.finish_reason)
            )
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
            if found.startswith(self._marks.begin):
                self._state, self._text = THINKING, found[len(self._marks.begin) :]
            elif last or not self._marks.begin.startswith(found):
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
        """Take the reasoning so far, without white space at its ends."""
        if not self._said:
            self._text = self._text.lstrip()
        before, end, behind = self._text.partition(self._marks.end)
        if end:
            self._state, self._text = BEHIND, behind
            return before.rstrip()
        held = 0 if last else begun(before, self._marks.end)
        found = self._taken(len(before[: len(before) - held].rstrip()))
        self._said = self._said or bool(found)
        return found

    def _taken(self, size: int) -> str:
        found, self._text = self._text[:size], self._text[size:]
        return found

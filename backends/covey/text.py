"""Tokens to text as they come: never half a character, and never past a stop word.

Knows one request's output; knows nothing of where the text goes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream


class Detokenizer:
    """Turns a request's growing output into text. Text that may turn out to be part of a stop word is held back."""

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int], stop_words: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        # The prompt's last tokens make the first output token decode as it would in the middle of a text.
        self._stream = DecodeStream(ids=list(context), skip_special_tokens=True)
        self._context = list(context)
        self._stops = tuple(stop_words)
        self._ids: list[int] = []
        self._decoded = 0  # characters decoded so far, held ones included
        self._held = ""
        self.stopped = False

    def push(self, tokens: Sequence[int]) -> tuple[str, int]:
        """Text that is now certain, and how many of `tokens` belong to the output: all, or those up to the one that
        completed a stop word, after which `stopped` is set."""
        text = []
        for index, token in enumerate(tokens):
            self._ids.append(token)
            piece = self._stream.step(self._tokenizer, token)
            if piece:
                self._decoded += len(piece)
                text.append(self._past_stops(piece))
                if self.stopped:
                    return "".join(text), index + 1
        return "".join(text), len(tokens)

    def finish(self) -> str:
        """What is still owed when the output ends: held text, and a last character that was never completed."""
        if self.stopped:
            return ""
        before = self._tokenizer.decode(self._context, skip_special_tokens=True)
        whole = self._tokenizer.decode(self._context + self._ids, skip_special_tokens=True)
        rest = self._past_stops(whole[len(before) + self._decoded :])
        rest, self._held = rest + self._held, ""
        return rest

    def _past_stops(self, piece: str) -> str:
        if not self._stops:
            return piece
        text = self._held + piece
        starts = [at for at in (text.find(word) for word in self._stops) if at >= 0]
        if starts:
            self.stopped = True
            self._held = ""
            return text[: min(starts)]
        hold = max((_overlap(text, word) for word in self._stops), default=0)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]


def visible_text(
    tokenizer: Tokenizer, context: Sequence[int], ids: Sequence[int], stop_words: Sequence[str], *, final: bool
) -> str:
    """The text of output `ids` as a `Detokenizer` fed with them would have given out by now. Keeps no state."""
    before = tokenizer.decode(list(context), skip_special_tokens=True)
    text: str = tokenizer.decode([*context, *ids], skip_special_tokens=True)[len(before) :]
    if not final:
        text = text.rstrip("\ufffd")
    starts = [at for at in (text.find(word) for word in stop_words) if at >= 0]
    if starts:
        return text[: min(starts)]
    hold = 0 if final else max((_overlap(text, word) for word in stop_words), default=0)
    return text[: len(text) - hold]


def _overlap(text: str, word: str) -> int:
    """The longest end of `text` that `word` starts with."""
    for size in range(min(len(text), len(word) - 1), 0, -1):
        if word.startswith(text[len(text) - size :]):
            return size
    return 0

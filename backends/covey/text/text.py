"""Turns tokens into text as they come: never half a character, and never past a stop word.

Knows one request's output, but not where the text goes. `DecodeStream` of tokenizers would lose text that is held back
at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

WINDOW = 24  # the most tokens decoded together; then all but CONTEXT of them are dropped
CONTEXT = 6
UNFINISHED = "\ufffd"  # the bytes of half a character decode to this
LONGEST = 4  # bytes of a character


def context_of(tokenizer: Tokenizer, tokens: Sequence[int]) -> list[int]:
    """Return the last of `tokens`, so that following tokens decode as after all of them. These are `CONTEXT` tokens, or
    more if they begin within a character. Byte tokens are decoded together, and all are lost if the first one is not a
    character's first byte (SentencePiece's byte fallback)."""
    for count in range(CONTEXT, CONTEXT + LONGEST):
        last = list(tokens[-count:])
        if not tokenizer.decode(last, skip_special_tokens=True).startswith(UNFINISHED):
            return last
    return list(tokens[-CONTEXT:])


def last_output(output: Sequence[int], stop_words: Sequence[str]) -> list[int]:
    """Return the last tokens of `output` that affect the text after it: a stop word or a character may begin in
    them."""
    return list(output[-(WINDOW + max(map(len, stop_words), default=0)) :])


class Detokenizer:
    """Turns a request's growing output into text. It holds back text that may be the start of a stop word."""

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int], stop_words: Sequence[str] = ()) -> None:
        """`context` holds the prompt's last tokens, so that the first output token decodes as a continuation."""
        self._tokenizer = tokenizer
        self._stops = tuple(stop_words)
        self._window = list(context)
        self._shown = len(self._decode(self._window))  # characters of the window's text already returned or held
        self._held = ""
        self._begun = [0] * len(self._stops)  # for each stop word, its characters at the end of the held text
        self.stopped = False

    def push(self, tokens: Sequence[int]) -> tuple[str, int]:
        """Return the text that is now certain, and how many of `tokens` belong to the output. A token that completes a
        stop word is the last one, and sets `stopped`."""
        if not self._stops:
            return self._advance(tokens), len(tokens)
        text: list[str] = []
        for index, token in enumerate(tokens):
            if self.stopped:
                return "".join(text), index
            text.append(self._past_stops(self._advance([token])))
        return "".join(text), len(tokens)

    def finish(self) -> str:
        """Return the remaining text at the end of the output: held text, and an incomplete last character."""
        if self.stopped:
            return ""
        rest = self._past_stops(self._decode(self._window)[self._shown :])
        rest, self._held = rest + self._held, ""
        return rest

    def _advance(self, tokens: Sequence[int]) -> str:
        self._window.extend(tokens)
        text = self._decode(self._window)
        certain = text.rstrip(UNFINISHED)
        piece = certain[self._shown :]
        self._shown = max(self._shown, len(certain))
        if len(self._window) > WINDOW and certain == text:
            self._window = context_of(self._tokenizer, self._window)
            self._shown = len(self._decode(self._window))
        return piece

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def _past_stops(self, piece: str) -> str:
        if not self._stops:
            return piece
        text = self._held + piece
        starts = [at for at in (text.find(word) for word in self._stops) if at >= 0]
        if starts:
            self.stopped = True
            self._held = ""
            return text[: min(starts)]
        self._begun = [_overlap(text, word, most + len(piece)) for word, most in zip(self._stops, self._begun)]
        hold = max(self._begun)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold]


def visible_text(
    tokenizer: Tokenizer, context: Sequence[int], ids: Sequence[int], stop_words: Sequence[str], *, final: bool
) -> str:
    """Return all text that a `Detokenizer` would have returned for output `ids` so far. Keeps no state."""

    def decoded(count: int) -> str:
        text: str = tokenizer.decode([*context, *ids[:count]], skip_special_tokens=True)
        return text[before:] if final else text[before:].rstrip(UNFINISHED)

    before = len(tokenizer.decode(list(context), skip_special_tokens=True))
    # The bytes of half a character may make bytes before them undecodable.
    fewest = len(ids) if final else max(0, len(ids) - LONGEST + 1)
    text = max((decoded(count) for count in range(len(ids), fewest - 1, -1)), key=len)
    starts = [at for at in (text.find(word) for word in stop_words) if at >= 0]
    if starts:
        return text[: min(starts)]
    hold = 0 if final else max((_overlap(text, word, len(text)) for word in stop_words), default=0)
    return text[: len(text) - hold]


def _overlap(text: str, word: str, most: int) -> int:
    """Return the length of the longest end of `text`, at most `most`, with which `word` begins. If `most` is the last
    result plus the new characters, the search is linear over all tokens."""
    for size in range(min(most, len(text), len(word) - 1), 0, -1):
        if word.startswith(text[len(text) - size :]):
            return size
    return 0

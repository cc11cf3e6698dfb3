"""Computes the tokens that may follow in a text that must fit a grammar: a JSON schema, a regular expression, or rules.

The target and its drafters each keep a `Grammar` for a request's text. The allowed tokens depend only on the text, even
if drafts were consumed and rolled back before. llguidance computes them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from covey.contracts.errors import CoveyError, SettingError
from covey.contracts.types import NO_INTS, Ints, Sampling
from covey.text.grammar_limits import too_much
from covey.text.tokenization import load_tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

log = logging.getLogger("covey.grammar")

Words = npt.NDArray[np.uint32]  # bit i of word j: token 32 * j + i is allowed

# Limits of one grammar's cost in llguidance's own units, equal on all machines. `covey.text.grammar_limits` bounds the
# costs that these miss. The worst grammars found compile in some 0.3 s and take 50 ms for a mask.
LIMITS: dict[str, Any] = {
    "max_grammar_size": 10_000,  # symbols of its rules
    "initial_lexer_fuel": 100_000,  # for its regular expressions, when it is compiled
    "step_lexer_fuel": 30_000,  # for one mask
    "step_max_items": 8_000,  # of the parser, for one mask
    "max_items_in_row": 2_000,  # of the parser, after one byte
    "max_lexer_states": 10_000,  # of one request, of one or two kilobytes each
}
FIRST = 3  # tokens (the lowest allowed ids) that a grammar must be able to begin with, within its limits
REFILL = 16  # tokens consumed between two masks when a text is replayed: each mask refills the lexer's fuel
APART = 32  # least number of tokens between two restarts after a limit
WORD = 32
BLANK = r"\n?[ \t]{0,32}"  # between the parts of JSON: without it, small models write blanks until `max_tokens`


def of_schema(schema: str) -> str:
    """Return the grammar of JSON that fits the schema, which may define its own whitespace. Raises ValueError if it is
    no JSON object."""
    from llguidance import LLMatcher

    read = json.loads(schema)
    said = read.get("x-guidance") if isinstance(read, dict) else None
    own = isinstance(said, dict) and not said.keys().isdisjoint(("whitespace_flexible", "whitespace_pattern"))
    return LLMatcher.grammar_from_json_schema(schema, None if own else {"whitespace_pattern": BLANK})


def of_regex(pattern: str) -> str:
    """Return the grammar of texts that match the whole pattern."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_regex(pattern)


def of_lark(rules: str) -> str:
    """Return the grammar that these rules define; its first rule is `start`."""
    from llguidance import LLMatcher

    return LLMatcher.grammar_from_lark(rules)


SOURCES = {"grammar_json": of_schema, "grammar_regex": of_regex, "grammar_lark": of_lark}


def compiled(name: str, text: str, tokenizer: LLTokenizer) -> str:
    """Return the grammar in a request's field `name`. Raises ValueError, which says what is allowed instead."""
    if found := too_much(name, text):
        raise ValueError(found)
    try:
        grammar = SOURCES[name](text)
    except ValueError as error:
        raise ValueError(f"a JSON schema: {error}") from None
    if found := problem(grammar, tokenizer):
        raise ValueError(f"a grammar that can be compiled: {' '.join(found.split())[:200]}")
    return grammar


def problem(grammar: str, tokenizer: LLTokenizer) -> str:
    """Return why a grammar can generate no text; "" if it can generate its first tokens."""
    matcher = _matcher(grammar, tokenizer)
    if matcher.is_error():
        return str(matcher.get_error())
    for at in range(FIRST):
        words = np.frombuffer(matcher.compute_bitmask(), np.uint32)
        if matcher.is_error():
            why = str(matcher.get_error())
            return why if at else f"no text fits it (such as a schema that only names itself), or too many do: {why}"
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        going = allowed[~np.isin(allowed, tokenizer.eos_tokens)]
        if not len(going):
            return ""
        matcher.consume_tokens([int(going[0])])
    return str(matcher.get_error())


@lru_cache(maxsize=16)
def tokenizer_of(folder: str, vocab_size: int, end_ids: tuple[int, ...]) -> LLTokenizer:
    """Return the folder's tokenizer for grammars, with at least `vocab_size` tokens. Raises SettingError if it cannot
    be used for them."""
    from llguidance import LLTokenizer

    tokenizer = load_tokenizer(folder)
    if tokenizer is None:
        raise SettingError(f"{folder}: has no tokenizer, which grammars need")
    described, known = tokenizer.to_str(), 1 + max(tokenizer.get_vocab().values(), default=-1)
    if known > vocab_size:  # added tokens that the model lacks
        made = json.loads(described)
        made["added_tokens"] = [each for each in made["added_tokens"] if each["id"] < vocab_size]
        described = json.dumps(made)
    known = max(known, vocab_size)
    ends = [each for each in end_ids if each < known]
    if not ends:
        raise SettingError(f"{folder}: the model has no end token, which grammars need")
    try:
        return LLTokenizer(described, n_vocab=known, eos_token=ends)
    except Exception as error:  # the library's errors have no common base
        beyond = [each for each in ends if each >= 1 + max(tokenizer.get_vocab().values(), default=-1)]
        cure = f"; its tokenizer lacks end token {beyond[0]}: name another eos_token_id in generation_config.json"
        raise SettingError(f"{folder}: grammars cannot read its tokenizer: {error}{cure if beyond else ''}") from None


class Grammar:
    """The grammar of one request, and its state after the request's text."""

    def __init__(self, grammar: str, tokenizer: LLTokenizer) -> None:
        self._grammar, self._tokenizer = grammar, tokenizer
        self._words = -(-tokenizer.vocab_size // WORD)
        self._matcher = _matcher(grammar, tokenizer)
        self._output: Ints = NO_INTS
        self._path: list[int] = []  # drafts consumed after the output
        self._lost = False  # the output does not fit
        self._drafts = True  # drafts have hit no limit yet
        self._anew_at = -APART  # tokens of output at the last restart

    def follow(self, output: Ints) -> None:
        """Set the request's output."""
        both = min(len(output), len(self._output))
        differing = np.flatnonzero(output[:both] != self._output[:both])
        same = int(differing[0]) if len(differing) else both
        if self._matcher.is_error():
            self._may_begin_anew(output)
        elif self._lost or not self._back(len(self._path) + len(self._output) - same):
            self._anew(output)
        else:
            self._lost = not self._consume(output[same:].tolist())
        self._output, self._path = output.copy(), []

    def after(self, path: Sequence[int]) -> Words | None:
        """Return the tokens that may follow the output and `path`; None if `path` does not fit, or a limit is hit.

        A limit that is hit after drafts costs the request its drafts, not its text: it goes on without drafts. A limit
        that is hit right after the output may be the sum of the costs of earlier text. Then the grammar restarts,
        unless it has just restarted."""
        if len(path) and not self._drafts:
            return None
        allowed = self._after(path)
        if allowed is None and self._matcher.is_error():
            if len(path):
                self._drafts = False
                self._anew(self._output)
            elif self._may_begin_anew(self._output):
                allowed = self._after(path)
        return allowed

    def _after(self, path: Sequence[int]) -> Words | None:
        same = next((at for at, pair in enumerate(zip(path, self._path)) if pair[0] != pair[1]), None)
        same = min(len(path), len(self._path)) if same is None else same
        if self._lost or not self._back(len(self._path) - same):
            return None
        del self._path[same:]
        for token in path[same:]:
            if not self._consume([token]):
                return None
            self._path.append(token)
        found = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: self._words]
        return None if self._matcher.is_error() else found  # after an error the mask allows the end of text

    def _consume(self, tokens: list[int]) -> bool:
        """Consume the tokens if they fit, and return whether they do. The matcher never recovers from a wrong token."""
        if any(not 0 <= token < self._tokenizer.vocab_size for token in tokens):
            return False
        return self._matcher.validate_tokens(tokens) == len(tokens) and bool(self._matcher.consume_tokens(tokens))

    def _back(self, count: int) -> bool:
        return not count or bool(self._matcher.rollback(count))

    def _may_begin_anew(self, output: Ints) -> bool:
        if 0 <= len(output) - self._anew_at < APART:
            return False
        self._anew_at = len(output)
        self._anew(output)
        return True

    def _anew(self, output: Ints) -> None:
        self._matcher, self._path, tokens = _matcher(self._grammar, self._tokenizer), [], output.tolist()
        self._lost = False
        for at in range(0, len(tokens), REFILL):
            self._matcher.compute_bitmask()
            self._lost = self._lost or not self._consume(tokens[at : at + REFILL])


class Grammars:
    """The grammars of a model's open requests, by their rows of the settings table."""

    def __init__(self, folder: str, vocab_size: int) -> None:
        """`folder` contains the tokenizer."""
        self._folder, self._vocab_size = folder, vocab_size
        self._open: dict[int, Grammar] = {}

    def add(self, row: int, sampling: Sampling) -> None:
        """Open a row with its request's grammar, or without one if grammars cannot use the folder's tokenizer."""
        if not sampling.grammar:
            return
        try:
            tokenizer = tokenizer_of(self._folder, self._vocab_size, sampling.end_ids)
        except CoveyError as error:
            log.warning("Cannot load a request's grammar: %s", error)
            return
        self._open[row] = Grammar(sampling.grammar, tokenizer)

    def remove(self, row: int) -> None:
        self._open.pop(row, None)

    def get(self, row: int) -> Grammar | None:
        return self._open.get(row)


def _matcher(grammar: str, tokenizer: LLTokenizer) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits

    return LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False, **LIMITS))

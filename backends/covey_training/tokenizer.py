"""The byte-level BPE tokenizer that target and drafters share."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

VOCABULARY = 4096
END_OF_TEXT = "<|endoftext|>"
PADDING = "<|pad|>"
# The chat domain's form: a turn per line, and the space after the colon belongs to the reply. Calls of functions stand
# between tags, as many models write them.
CHAT_TEMPLATE = (
    "{% if tools %}User: These functions may be called:{{ '\\n' }}"
    "{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}"
    'A call is written so:{{ \'\\n<tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call>\\n\' }}{% endif %}'
    "{% for message in messages %}"
    "{{ {'user': 'User', 'assistant': 'Assistant', 'system': 'User', 'tool': 'User'}[message['role']] }}: "
    "{% if message['role'] == 'tool' %}{{ '<tool_response>\\n' + message['content'] + '\\n</tool_response>' }}"
    "{% else %}{{ message['content'] }}{% endif %}"
    "{% for call in message['tool_calls'] or [] %}"
    "{% if message['content'] or not loop.first %}{{ '\\n' }}{% endif %}"
    "{{ '<tool_call>\\n{\"name\": ' }}{{ call['function']['name'] | tojson }}"
    "{{ ', \"arguments\": ' }}{{ call['function']['arguments'] | tojson }}{{ '}\\n</tool_call>' }}"
    "{% endfor %}"
    "{% if not loop.last or add_generation_prompt %}{{ '\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


def train(corpora: Iterable[list[str]], *, vocabulary: int = VOCABULARY, characters: int = 3_000_000) -> Tokenizer:
    """Learn merges from an equal number of characters of every corpus, so that no domain owns the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END_OF_TEXT, PADDING],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator((text for corpus in corpora for text in sample(corpus, characters)), trainer)
    return tokenizer


def sample(corpus: list[str], characters: int) -> Iterable[str]:
    shuffled = list(corpus)
    random.Random(0).shuffle(shuffled)
    taken = 0
    for document in shuffled:
        if taken >= characters:
            return
        taken += len(document)
        yield document


def save(tokenizer: Tokenizer, folder: Path, *, max_length: int) -> None:
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=PADDING,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    folder.mkdir(parents=True, exist_ok=True)
    fast.save_pretrained(folder, save_jinja_files=False)


def end_of_text(learned: Tokenizer) -> int:
    """Return the id that ends a document."""
    token: int | None = learned.token_to_id(END_OF_TEXT)
    if token is None:
        raise ValueError(f"the tokenizer has no {END_OF_TEXT}: learn it with this module")
    return token


def load(folder: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(folder)

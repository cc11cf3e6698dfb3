from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from covey.text.text import Detokenizer, context_of, visible_text

CORPUS = ["the quick brown fox jumps over the lazy dog", "äöü ß € 你好 🚀🚀 naïve", "stop here please stop"] * 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    return made


def run(detokenizer: Detokenizer, ids: list[int], rng: random.Random) -> tuple[str, int]:
    """The text in pieces of random length, and how many ids it took."""
    text, used = "", 0
    while used < len(ids) and not detokenizer.stopped:
        size = rng.randrange(1, 5)
        piece, count = detokenizer.push(ids[used : used + size])
        assert "\ufffd" not in piece, "half a character got out"
        text += piece
        used += count
    return text + detokenizer.finish(), used


@pytest.fixture(scope="module")
def by_bytes() -> Tokenizer:
    """As SentencePiece's of Llama 2, Mistral and Gemma: what has no token is written as its bytes, one token each."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ab", "▁a"]
    vocab = {token: place for place, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b"), ("▁", "a")], byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(parts)
    return made


@pytest.mark.parametrize("seed", range(10))
def test_characters_that_are_written_as_bytes_stay_whole(by_bytes: Tokenizer, seed: int) -> None:
    """However long a run of them is, and wherever it is cut."""
    rng = random.Random(seed)
    prompt, output = ("".join(rng.choices(["😀", "न", "é", "ab", " a"], [seed, 1, 1, 1, 1], k=k)) for k in (9, 60))
    before = by_bytes.encode(prompt).ids
    ids = by_bytes.encode(prompt + output).ids[len(before) :]
    context = context_of(by_bytes, before)
    assert run(Detokenizer(by_bytes, context), ids, rng) == (output, len(ids))
    pieces, done = "", 0
    while done < len(ids):
        count = done + rng.randrange(1, 5)
        seen = visible_text(by_bytes, context, ids[:done], [], final=False)
        pieces += visible_text(by_bytes, context, ids[:count], [], final=count >= len(ids))[len(seen) :]
        done = count
    assert pieces == output


@pytest.mark.parametrize("seed", range(10))
def test_pieces_join_to_the_whole_text(tokenizer: Tokenizer, seed: int) -> None:
    whole = " ".join(CORPUS)
    ids = tokenizer.encode(whole).ids
    text, used = run(Detokenizer(tokenizer, ids[:3]), ids[3:], random.Random(seed))
    assert used == len(ids) - 3
    assert tokenizer.decode(ids[:3]) + text == whole


@pytest.mark.parametrize("stop", ["please", "e s", "fox jumps over", "🚀🚀", "dog ä"])
@pytest.mark.parametrize("seed", range(3))
def test_stops_across_tokens_and_shows_nothing_of_the_stop_word(tokenizer: Tokenizer, stop: str, seed: int) -> None:
    whole = " ".join(CORPUS)
    ids = tokenizer.encode(whole).ids
    detokenizer = Detokenizer(tokenizer, [], ["never there", stop])
    text, used = run(detokenizer, ids, random.Random(seed))
    assert detokenizer.stopped
    assert text == whole[: whole.index(stop)]
    assert stop in tokenizer.decode(ids[:used])
    assert stop not in tokenizer.decode(ids[: used - 1]), "it must stop with the first token that completes the word"


def test_the_sizes_of_what_is_held_are_not_looked_at_again_for_each_token(tokenizer: Tokenizer) -> None:
    looked = 0

    class Word(str):
        def startswith(self, *given: object) -> bool:
            nonlocal looked
            looked += 1
            return super().startswith(*given)  # type: ignore[arg-type]

    ids = tokenizer.encode("e" * 400).ids
    stops = [Word("e" * 255 + "b"), *(Word(f"{first}e" * 120) for first in "abcd")]
    text, _ = run(Detokenizer(tokenizer, [], stops), ids, random.Random(0))
    assert text == "e" * 400
    assert looked <= len(stops) * (2 * len(text) + len(ids))


def test_held_text_is_given_out_at_the_end(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("please sto").ids
    text, _ = run(Detokenizer(tokenizer, [], ["stop"]), ids, random.Random(0))
    assert text == "please sto"


def test_an_unfinished_character_shows_as_replacement_only_at_the_end(tokenizer: Tokenizer) -> None:
    symbols = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("é")[0][0]
    ids = [tokenizer.token_to_id(symbol) for symbol in symbols]
    detokenizer = Detokenizer(tokenizer, [])
    assert detokenizer.push(ids[:1]) == ("", 1)
    assert detokenizer.finish() == "\ufffd"


@pytest.mark.parametrize("stops", [[], ["lazy"], ["🚀"], ["here p", "brown"]])
def test_stateless_text_agrees(tokenizer: Tokenizer, stops: list[str]) -> None:
    ids = tokenizer.encode(" ".join(CORPUS)).ids
    context, output = ids[:2], ids[2:]
    detokenizer = Detokenizer(tokenizer, context, stops)
    shown = ""
    for count in range(1, len(output) + 1):
        shown += detokenizer.push(output[count - 1 : count])[0]
        assert visible_text(tokenizer, context, output[:count], stops, final=detokenizer.stopped) == shown
        if detokenizer.stopped:
            break

"""Prompts changed in ways that a choice of drafter may stumble over, and some of a domain that no drafter knows."""

from __future__ import annotations

import random

from covey import prompts

UNDRAFTED = "recipes"
LONG_CHARACTERS = 2000  # about 500 tokens
PARTNER = {
    "code": "chat",
    "math": "translation",
    "translation": "code",
    "summarisation": "math",
    "chat": "summarisation",
}
RECIPES = [
    f"Recipe: {dish}\nIngredients: {things}\nMethod:"
    for dish, things in (
        ("lentil soup", "lentils, carrots, an onion, cumin, stock"),
        ("rye bread", "rye flour, water, salt, sourdough"),
        ("apple cake", "apples, butter, sugar, flour, eggs"),
        ("potato salad", "potatoes, gherkins, mustard, oil, vinegar"),
        ("mushroom risotto", "rice, mushrooms, stock, parmesan, white wine"),
        ("fish stew", "cod, tomatoes, fennel, saffron, stock"),
        ("pancakes", "milk, eggs, flour, a pinch of salt"),
        ("bean chilli", "kidney beans, peppers, tomatoes, chilli, cocoa"),
        ("roast chicken", "a chicken, lemon, thyme, garlic"),
        ("rice pudding", "rice, milk, sugar, vanilla"),
    )
]


def unchanged(domain: str, text: str, seed: int) -> str:  # noqa: ARG001
    return text


def shuffled(domain: str, text: str, seed: int) -> str:  # noqa: ARG001
    """Its words in another order, the last line's kept, from which the answer goes on."""
    body, _, last = text.rpartition("\n")
    words = body.split()
    random.Random(seed).shuffle(words)
    return f"{' '.join(words)}\n{last}" if words else text


def rephrased(domain: str, text: str, seed: int) -> str:  # noqa: ARG001
    """In words that no document begins with, and in another case."""
    return f"Please have a look at what follows, and go on in the same way.\n\n{text[0].lower()}{text[1:]}"


def long(domain: str, text: str, seed: int) -> str:
    """After other prompts of its domain."""
    others = prompts.load(domain)
    random.Random(seed).shuffle(others)
    before = ""
    while len(before) + len(text) < LONG_CHARACTERS:
        before += others.pop() + "\n\n"
    return before + text


def switching(domain: str, text: str, seed: int) -> str:
    """Begins in its domain, and half-way goes on in another one, which its answer begins in."""
    other = random.Random(seed).choice(prompts.load(PARTNER[domain]))
    return f"{text}\n\n{other}"

"""Documents of the domain `edits`: an instruction, a text, and the text after the edit, most of which is copied.

Functions of the Python standard library are edited as people edit code; beside them passages are quoted and corrected,
and forms are filled. Each edit is a function of the text and of the random order that it is given.
"""

from __future__ import annotations

import ast
import hashlib
import random
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

BEFORE, AFTER = "\nBefore:\n", "\nAfter:"
LINES, CHARACTERS = (3, 60), 2400
EDITS_OF_FUNCTION = 3
SENTENCE = re.compile(r"(?<=[.!?]) (?=[A-Z])")
SIMPLE = (ast.Assign, ast.AugAssign, ast.Return, ast.Delete, ast.Assert)
FORM_FIELDS = {
    "Name": ("Anna Berg", "Tom Weber", "Mary Jones", "Ivan Petrov", "Lena Fischer", "Paul Martin", "Ruth Adler"),
    "City": ("Berlin", "London", "Paris", "Vienna", "Boston", "Hamburg", "Madrid", "Prague", "Oslo"),
    "Street": ("Main Street", "Park Road", "Mill Lane", "Church Street", "Station Road", "Hill Avenue"),
    "Colour": ("red", "blue", "green", "white", "black", "yellow", "grey"),
    "Size": ("small", "medium", "large", "very large"),
    "Day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "Month": ("January", "March", "April", "June", "July", "October", "December"),
    "Payment": ("cash", "card", "transfer", "invoice"),
    "Delivery": ("by post", "by courier", "picked up"),
    "Article": ("chair", "table", "lamp", "book", "bicycle", "printer", "camera", "clock"),
}


@dataclass(frozen=True, slots=True)
class Function:
    """A function's source, dedented, and its syntax tree."""

    source: str
    tree: ast.FunctionDef

    @property
    def lines(self) -> list[str]:
        return self.source.split("\n")

    @property
    def names(self) -> list[str]:
        """Return the names that stand for nothing else anywhere in the text: these alone can be replaced as text."""
        names = [node for node in ast.walk(self.tree) if isinstance(node, ast.Name)]
        given = [node.arg for node in ast.walk(self.tree) if isinstance(node, ast.arg)]
        uses = Counter([*given, *(node.id for node in names)])
        own = {*given, *(node.id for node in names if isinstance(node.ctx, ast.Store))} - {"self", "cls"}
        written = {name: len(re.findall(rf"\b{name}\b", self.source)) for name in own if len(name) > 1}
        return sorted(name for name, count in written.items() if 1 < count == uses[name])


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit as it is asked for, and the text before and after it."""

    instruction: str
    before: str
    after: str

    def document(self) -> str:
        return f"Edit: {self.instruction}{BEFORE}{self.before}{AFTER}\n{self.after}"


def source_key(document: str) -> str:
    """Return the first line of the text that an edit begins with, or of the function in it: edits of one text share
    it."""
    lines = document[document.index(BEFORE) + len(BEFORE) :].split("\n")
    return next((line for line in lines if line.startswith("def ")), lines[0])


def functions_of(sources: Iterable[str]) -> list[Function]:
    """Return the functions and methods of ASCII sources that are neither very short nor long, each once."""
    found: dict[str, Function] = {}
    for source in sources:
        try:
            module = ast.parse(source)
        except SyntaxError:
            continue
        lines = source.split("\n")
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
                text = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                if LINES[0] <= text.count("\n") + 1 <= LINES[1] and len(text) <= CHARACTERS and text.startswith("def "):
                    try:
                        tree = ast.parse(text).body[0]
                    except SyntaxError:  # a string within it was not indented
                        continue
                    assert isinstance(tree, ast.FunctionDef)
                    found.setdefault(text, Function(text, tree))
    return list(found.values())


def edited_functions(functions: Sequence[Function], edits: int = EDITS_OF_FUNCTION) -> Iterator[str]:
    """Yield documents of up to `edits` different edits of each function; new names are other functions'."""
    names = sorted({name for function in functions for name in function.names})
    for function in functions:
        order = _order(function.source)
        made = 0
        for change in order.sample(CHANGES, len(CHANGES)):
            if made < edits and (edit := change(function, names, order)) is not None:
                made += 1
                yield edit.document()


def rename(function: Function, names: Sequence[str], order: random.Random) -> Edit | None:
    old = order.choice(function.names or [""])
    new = order.choice(names)
    if not old or re.search(rf"\b{new}\b", function.source):
        return None
    return Edit(f"Rename `{old}` to `{new}`.", function.source, re.sub(rf"\b{old}\b", new, function.source))


def change_number(function: Function, _: Sequence[str], order: random.Random) -> Edit | None:
    found = set(re.findall(r"(?<![\w.'\"])\d+(?![\w.'\"])", function.source))
    numbers = sorted(number for number in found if len(re.findall(rf"\b{number}\b", function.source)) == 1)
    if not numbers:
        return None
    old = order.choice(numbers)
    new = str(order.randrange(2, 10 ** max(2, len(old))))
    changed = re.sub(rf"\b{old}\b", new, function.source)
    return None if old == new else Edit(f"Change {old} to {new}.", function.source, changed)


def change_default(function: Function, _: Sequence[str], order: random.Random) -> Edit | None:
    given = function.tree.args
    pairs = [(one.arg, value) for one, value in zip(given.args[::-1], given.defaults[::-1])]
    texts = [(name, f"{name}={ast.unparse(value)}") for name, value in pairs if isinstance(value, ast.Constant)]
    texts = [(name, text) for name, text in texts if function.source.count(text) == 1]
    if not texts:
        return None
    name, text = order.choice(texts)
    new = f"{name}={order.choice(['None', 'True', 'False', '0', '1', repr(''), str(order.randrange(2, 100))])}"
    changed = function.source.replace(text, new)
    return None if new == text else Edit(f"Make the default {new}.", function.source, changed)


def add_docstring(function: Function, _: Sequence[str], __: random.Random) -> Edit | None:
    """The docstring is the function's own, which the text before the edit lacks."""
    written, body = ast.get_docstring(function.tree), function.tree.body
    if written is None or len(body) < 2:
        return None
    first, line = body[0], written.split("\n")[0].strip()
    if '"' in line or "\\" in line or not 10 < len(line) < 90 or first.end_lineno is None:
        return None
    head, rest = function.lines[: first.lineno - 1], function.lines[first.end_lineno :]
    while rest and not rest[0].strip():
        rest = rest[1:]
    after = "\n".join([*head, " " * first.col_offset + f'"""{line}"""', *rest])
    return Edit(f"Add the docstring: {line}", "\n".join([*head, *rest]), after)


def add_check(function: Function, _: Sequence[str], order: random.Random) -> Edit | None:
    given = function.tree.args
    required = [one.arg for one in given.args[: len(given.args) - len(given.defaults)]]
    required = [name for name in required if name not in ("self", "cls")]
    body = function.tree.body[ast.get_docstring(function.tree) is not None :]
    if not required or not body:
        return None
    name, place, indent = order.choice(required), body[0].lineno - 1, " " * body[0].col_offset
    what, test = order.choice([("is None", "{} is None"), ("is empty", "not {}"), ("is negative", "{} < 0")])
    check = [f"{indent}if {test.format(name)}:", f'{indent}    raise ValueError("{name} {what}")']
    after = [*function.lines[:place], *check, *function.lines[place:]]
    return Edit(f"Raise ValueError if `{name}` {what}.", function.source, "\n".join(after))


def is_line(node: ast.stmt) -> bool:
    """Return whether this is a statement of one line, and no docstring."""
    call = isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
    return (call or isinstance(node, SIMPLE)) and node.lineno == node.end_lineno


def swap_lines(function: Function, _: Sequence[str], order: random.Random) -> Edit | None:
    pairs = []
    for node in ast.walk(function.tree):
        body = getattr(node, "body", None)
        for one, two in pairwise(body) if isinstance(body, list) else ():
            if is_line(one) and is_line(two) and two.lineno == one.lineno + 1:
                pairs.append(one.lineno - 1)
    if not pairs:
        return None
    at, lines = order.choice(pairs), function.lines
    one, two = lines[at].strip(), lines[at + 1].strip()
    lines[at : at + 2] = lines[at + 1], lines[at]
    return None if one == two else Edit(f"Swap the lines `{one}` and `{two}`.", function.source, "\n".join(lines))


def remove_line(function: Function, _: Sequence[str], order: random.Random) -> Edit | None:
    lines = function.lines
    stripped = [line.strip() for line in lines]
    bodies = [getattr(node, "body", None) for node in ast.walk(function.tree)]
    single = [
        node.lineno - 1
        for body in bodies
        if isinstance(body, list) and len(body) > 1
        for node in body
        if is_line(node) and stripped.count(stripped[node.lineno - 1]) == 1
    ]
    if not single:
        return None
    at = order.choice(single)
    return Edit(f"Remove the line `{stripped[at]}`.", function.source, "\n".join([*lines[:at], *lines[at + 1 :]]))


CHANGES: Sequence[Callable[[Function, Sequence[str], random.Random], Edit | None]] = (
    rename, change_number, change_default, add_docstring, add_check, swap_lines, remove_line,
)  # fmt: skip


def edited_passages(passages: Iterable[str]) -> Iterator[str]:
    """Yield documents in which a sentence of a passage is quoted, or one of its words replaced."""
    for passage in passages:
        order = _order(passage)
        sentences = [one for one in SENTENCE.split(passage) if 4 < len(one.split()) < 40]
        if len(sentences) < 2:
            continue
        quoted = order.choice(sentences)
        words = quoted.split()
        start = order.randrange(len(words) - 2)
        yield Edit(f"Quote the sentence with `{' '.join(words[start : start + 3])}`.", passage, quoted).document()
        found = re.findall(r"[a-z]{4,}", passage)
        once = [word for word in found if len(re.findall(rf"\b{word}\b", passage)) == 1]
        if len(once) > 1:
            old, new = order.sample(once, 2)
            changed = re.sub(rf"\b{old}\b", new, passage)
            yield Edit(f"Replace `{old}` by `{new}`.", passage, changed).document()


def edited_forms(count: int) -> Iterator[str]:
    """Yield documents in which an empty form is filled."""
    order = random.Random(0)
    for _ in range(count):
        fields = order.sample(sorted(FORM_FIELDS), order.randrange(3, 8))
        values = [order.choice(FORM_FIELDS[field]) for field in fields]
        told = list(zip(fields, values))
        order.shuffle(told)
        title = f"Form {order.randrange(1000, 100000)}"
        before = "\n".join([title, *(f"{field}: ..." for field in fields), "Checked by: ...", "End of the form"])
        filled = [f"{field}: {value}" for field, value in zip(fields, values)]
        after = "\n".join([title, *filled, "Checked by: ...", "End of the form"])
        asked = ", ".join(f"{field.lower()} {value}" for field, value in told)
        yield Edit(f"Fill the form: {asked}.", before, after).document()


def _order(text: str) -> random.Random:
    """Return a random order that the text alone decides."""
    return random.Random(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big"))

"""The domain `edits`: what is asked for is what was done, and nothing else was."""

import ast
import difflib
import random
import re

import pytest

from covey_training import corpora, edits, teacher

SOURCE = '''
class Store:
    def put(self, key, value, limit=10):
        """Put a value under a key.

        Raise KeyError where it is full.
        """
        count = len(self.items)
        total = count + 1
        if total > limit:
            raise KeyError(key)
        self.items[key] = value
        return count

    async def unseen(self):
        pass


def average(values, start=0):
    total = start
    for each in values:
        total += each
    scale = 4096
    return total / scale
'''
FUNCTIONS = edits.functions_of([SOURCE, "not python at all", SOURCE])
NAMES = ["other", "thing", "entry"]


def parts(document: str) -> tuple[str, str, str]:
    match = re.fullmatch(r"Edit: (.*?)\nBefore:\n(.*)\nAfter:\n(.*)", document, re.DOTALL)
    assert match is not None
    return match[1], match[2], match[3]


def made(change: str, seed: int = 0) -> list[edits.Edit]:
    found = (getattr(edits, change)(function, NAMES, random.Random(seed)) for function in FUNCTIONS)
    return [edit for edit in found if edit is not None]


def test_functions_are_found_once_and_whole() -> None:
    assert sorted(function.tree.name for function in FUNCTIONS) == ["average", "put"]
    assert all(ast.parse(function.source) for function in FUNCTIONS)


@pytest.mark.parametrize("seed", range(5))
def test_a_name_is_changed_wherever_it_stands(seed: int) -> None:
    for edit in made("rename", seed):
        old, new = re.findall("`(.*?)`", edit.instruction)
        assert not re.search(rf"\b{old}\b", edit.after)
        assert re.sub(rf"\b{new}\b", old, edit.after) == edit.before


def test_names_that_also_stand_elsewhere_in_the_text_are_left_alone() -> None:
    """`key` is in the docstring, too, and as text it could not be told from the name."""
    (put,) = (function for function in FUNCTIONS if function.tree.name == "put")
    assert put.names == ["count", "limit", "total"]


@pytest.mark.parametrize(
    ("change", "lines"),
    [("change_number", 1), ("change_default", 1), ("add_docstring", 0), ("add_check", 0), ("remove_line", 1)],
)
def test_other_lines_stay_as_they_are(change: str, lines: int) -> None:
    found = made(change)
    assert found
    for edit in found:
        gone = [line for line in difflib.ndiff(edit.before.split("\n"), edit.after.split("\n")) if line[:2] == "- "]
        assert len(gone) == lines
        assert ast.parse(edit.before)
        assert ast.parse(edit.after)
        assert edit.before != edit.after


def test_a_check_stands_first_and_tests_what_was_asked_for() -> None:
    for edit in made("add_check"):
        name = re.findall("`(.*?)`", edit.instruction)[0]
        tree = ast.parse(edit.after).body[0]
        assert isinstance(tree, ast.FunctionDef)
        first = tree.body[ast.get_docstring(tree) is not None]
        assert isinstance(first, ast.If)
        assert name in ast.unparse(first.test)


def test_two_lines_change_places() -> None:
    for edit in made("swap_lines"):
        one, two = re.findall("`(.*?)`", edit.instruction)
        assert sorted(edit.before.split("\n")) == sorted(edit.after.split("\n"))
        assert edit.before.index(one) < edit.before.index(two)
        assert edit.after.index(two) < edit.after.index(one)


def test_a_quoted_sentence_is_in_the_passage() -> None:
    passage = "The mill is old and quiet. A family bought it last spring. They make paper there again now."
    quote, replaced = map(parts, edits.edited_passages([passage]))
    assert quote[2] in passage
    assert re.findall("`(.*?)`", quote[0])[0] in quote[2]
    old, new = re.findall("`(.*?)`", replaced[0])
    assert replaced[2] == passage.replace(old, new)


def test_a_form_is_filled_with_what_was_said() -> None:
    for document in edits.edited_forms(20):
        asked, before, after = parts(document)
        for empty, filled in zip(before.split("\n"), after.split("\n"), strict=True):
            if empty != filled:
                field, value = filled.split(": ")
                assert empty == f"{field}: ..."
                assert f"{field.lower()} {value}" in asked


def test_edits_of_one_text_are_on_one_side_of_the_split_and_prompts_end_before_the_answer() -> None:
    documents = list(edits.edited_functions(FUNCTIONS))
    assert documents == list(edits.edited_functions(FUNCTIONS)), "the text alone decides its edits"
    keys = {corpora.split_key("edits", document) for document in documents}
    assert {key.split("(")[0] for key in keys} == {"def put", "def average"}
    prompt = teacher.cut_prompt("edits", documents[0], random.Random(0))
    assert prompt.endswith("\nAfter:")
    assert documents[0].startswith(prompt + "\n")

"""Writes what follows from the tables of public fields (`covey_client.wire`): `make generate`.

In each file, what stands between `generated: NAME` and `generated: end` is replaced by that region of the ones below.
The results are committed: an ensemble's configuration must name every tensor of its steps before anything is loaded,
and `tritonserver --model-repository` serves the repository as it is.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from covey_client.wire import INPUTS, OUTPUTS, PROMPT, Field

ROOT = Path(__file__).resolve().parent
FILES = ("model_repository/*/config.pbtxt", "client/covey_client/wire.py", "docs/api.md")
START, END = "generated: (?!end)", "generated: end"
REGION = re.compile(rf"(^.*{START}([a-z ]+).*\n)(?:(?!.*generated: ).*\n)*(?=.*{END})", re.MULTILINE)
PYTHON = {"INT32": "int", "UINT64": "int", "FP32": "float", "BOOL": "bool", "BYTES": "str"}


def main() -> None:
    for path, text in stale().items():
        path.write_text(text, encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}")


def stale() -> dict[Path, str]:
    """The files that are not what they must be, with what they must be."""
    found, known = {}, _regions()
    for path in (path for pattern in FILES for path in sorted(ROOT.glob(pattern))):
        text = path.read_text(encoding="utf-8")
        marks = {len(re.findall(START, text)), text.count(END), len(REGION.findall(text))}
        if len(marks) > 1:
            raise ValueError(f"{path}: each region begins with `generated: NAME` and ends with `{END}`")
        due = REGION.sub(lambda region: region[1] + known[region[2].strip()], text)
        if due != text:
            found[path] = due
    return found


def _regions() -> dict[str, str]:
    settings = [field for field in INPUTS if field.name not in PROMPT]
    beside = [field for field in OUTPUTS if field.name != "text_output"]
    return {
        "inputs": _tensors("input", INPUTS, " optional: true"),
        "inputs beside the prompt": _tensors("input", settings, " optional: true"),
        "outputs": _tensors("output", OUTPUTS),
        "outputs taken in": _tensors("input", beside),
        "settings for covey": _maps("input", settings),
        "outputs of covey": _maps("output", beside, "covey_"),
        "outputs for detokenize": _maps("input", beside, "covey_"),
        "outputs of detokenize": _maps("output", OUTPUTS),
        "settings": "".join(f"    {each.name}: {_python(each)} | None\n" for each in settings if each.name != "stream"),
        "request": _table(
            ["field", "type", "default", "allowed", "meaning"],
            *([f"`{each.name}`", _type(each), _default(each), _allowed(each), each.doc] for each in INPUTS),
        ),
        "response": _table(
            ["field", "type", "meaning"], *([f"`{each.name}`", _type(each), each.doc] for each in OUTPUTS)
        ),
    }


def _tensors(kind: str, fields: Sequence[Field], end: str = "") -> str:
    lines = (
        f'  {{ name: "{field.name}" data_type: TYPE_{"STRING" if field.dtype == "BYTES" else field.dtype} '
        f"dims: [ {-1 if field.many else 1} ]{end} }}"
        for field in fields
    )
    return f"{kind} [\n" + ",\n".join(lines) + "\n]\n"


def _maps(kind: str, fields: Iterable[Field], prefix: str = "") -> str:
    return "".join(f'      {kind}_map {{ key: "{each.name}" value: "{prefix}{each.name}" }}\n' for each in fields)


def _table(head: list[str], *rows: list[str]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *rows))


def _python(field: Field) -> str:
    return f"Sequence[{PYTHON[field.dtype]}]" if field.many else PYTHON[field.dtype]


def _type(field: Field) -> str:
    return f"list of {field.dtype}" if field.many else field.dtype


def _default(field: Field) -> str:
    return "" if field.default is None else f"`{json.dumps(field.default).removesuffix('.0')}`"


def _allowed(field: Field) -> str:
    if field.choices:
        return ", ".join(f"`{choice}`" for choice in field.choices)
    if field.dtype == "BYTES":
        return "" if math.isinf(field.high) else f"at most {field.high} bytes"
    if field.dtype == "BOOL" and not field.high:
        return "`false`"
    if not field.is_number or field.many or field.dtype == "UINT64":
        return ""
    if math.isinf(field.high):
        return f"at least {field.low}"
    if field.low == field.high:
        return f"`{field.low}`"
    return f"{'above ' * field.above}{field.low:,.10g} to {field.high:,.10g}"


if __name__ == "__main__":
    main()

"""The packages are as docs/architecture.md lists them, every table of names says the same, and clocks are
what they must be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import grimp
import pytest

import covey
from covey_client import wire

REPOSITORY = Path(covey.__file__).parents[2]
ROW = re.compile(r"^\| \[(\w+)\]\(\S+\) \|.*\| (-|[\w, ]+) \|$", re.MULTILINE)
BACKENDS = Path(covey.__file__).parents[1]
WALL = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "strftime", "CLOCK_REALTIME"}
ALLOWED = {
    "covey/front/openai/routes.py": 1,  # `created` of the models that OpenAI's API lists
    "covey/front/openai/responses.py": 1,  # ... and of answers
    "covey/front/openai/shapes.py": 1,
    "covey/public_model/spans.py": 1,  # a trace's spans
    "covey/loop/measure.py": 1,  # says when cost curves were measured
}


def test_imports_keep_the_contracts_of_pyproject() -> None:
    """In a process of its own: import-linter sets logging up anew."""
    words = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_page_lists_every_package_and_what_it_imports() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = {package: set(said.split(", ")) - {"-"} for package, said in ROW.findall(page)}
    graph = grimp.build_graph("covey", cache_dir=None)
    packages = {name.removeprefix("covey."): name for name in graph.find_children("covey")}
    assert listed == {
        package: {
            other
            for other in packages.keys() - {package}
            if graph.direct_import_exists(importer=name, imported=packages[other], as_packages=True)
        }
        for package, name in packages.items()
    }
    assert all(set(list(listed)[:at]) >= others for at, others in enumerate(listed.values())), "from the lowest up"


def test_the_client_needs_neither_the_server_s_package_nor_grpc_to_be_imported() -> None:
    heavy = {"covey", "grpc", "numpy", "tritonclient"}
    code = f"import sys, covey_client, covey_client.wire; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.strip()


def test_nothing_but_dates_is_read_from_the_clock_on_the_wall() -> None:
    """What decides anything reads a clock that nobody sets: that one only dates what people read. The machine's clock
    cannot be set for a test, because everybody else's would jump too."""
    found = Counter(
        str(path.relative_to(BACKENDS))
        for path in BACKENDS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in WALL
        and isinstance(node.value, ast.Name)
        and node.value.id in ("time", "datetime", "date")
    )
    assert found == ALLOWED


def configured(model: str, kind: str) -> dict[str, tuple[str, int]]:
    """The tensors that a model's configuration declares."""
    text = (REPOSITORY / "model_repository" / model / "config.pbtxt").read_text(encoding="utf-8")
    sections = [part for part in re.split(r"^(?=\w)", text, flags=re.MULTILINE) if part.startswith(f"{kind} [")]
    found = re.findall(r'name: "(\w+)" data_type: TYPE_(\w+) dims: \[ (-?\d+) \]', "".join(sections))
    return {name: ("BYTES" if dtype == "STRING" else dtype, int(dims)) for name, dtype, dims in found}


def test_configurations_declare_the_tables_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", type(sys)("triton_python_backend_utils"))
    from covey.tritonio import tensors
    from covey.wire import codec

    inputs = {field.name: (field.dtype, -1 if field.many else 1) for field in wire.INPUTS}
    outputs = {field.name: (field.dtype, -1 if field.many else 1) for field in wire.OUTPUTS}
    assert configured("covey_unary", "input") == inputs
    assert configured("covey_unary", "output") == outputs
    assert configured("covey", "input") == inputs | {tensors.ASKS_FOR_STATE: ("BOOL", 1), tensors.INSPECT: ("BYTES", 1)}
    assert configured("covey", "output") == outputs | {tensors.STATE: ("BYTES", 1), tensors.REPORT: ("BYTES", 1)}
    assert configured("ensemble", "input") == {name: kind for name, kind in inputs.items() if name != "input_ids"}
    assert configured("ensemble", "output") == configured("detokenize", "output") == outputs
    passed = {name: kind for name, kind in outputs.items() if name != "text_output"}
    assert configured("detokenize", "input") == passed | {tensors.STATE: ("BYTES", 1)}
    for model in ("target", *(path.parent.name for path in REPOSITORY.glob("model_repository/draft_*/config.pbtxt"))):
        assert configured(model, "input") == {codec.REQUEST_TENSOR: ("INT32", -1)}
        assert configured(model, "output") == {codec.REPLY_TENSOR: ("INT32", -1)}

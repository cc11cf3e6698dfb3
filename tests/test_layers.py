"""Imports point one way, and every table of names says the same."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import covey
from covey_client import wire

PACKAGE = Path(covey.__file__).parent
REPOSITORY = PACKAGE.parents[1]
FOREIGN = ("torch", "transformers", "triton_python_backend_utils", "tritonclient")

# Each layer may import itself and what stands before it.
ORDER = [
    {"errors", "types"},
    {
        *("ports", "profile", "clock", "footprint", "private", "admin", "log_rate", "log_about", "guard"),
        *("worker", "interpreter", "ledger", "wire", "registry", "objectives", "pace", "shares", "tenants"),
    },
    {"company", "routing"},
    {"bandits", "kv", "trees", "verify", "text", "tokenization", "vocabulary", "prompts", "model_folder"},
    {"grammar", "grammar_limits", "grammar_process", "grammar_verdicts"},
    {"scheduler", "active", "roster"},
    {"rounds"},
    {"planner"},
    {"channel", "drafting", "memory", "memory_totals", "pool_size"},
    {"configuration", "engine", "streaming"},
    {"measure", "measure_rounds", "measure_samples"},
    {"care"},
    {"models", "sampling", "tritonio"},
    {"serving"},
    {"emulated"},
    {"target"},
    {"drafters"},
    {"star"},
    {"front"},
    {"server", "training"},
]


def imports(path: Path) -> set[str]:
    """What a file imports, for type checkers too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layer(name: str) -> int:
    return next(index for index, names in enumerate(ORDER) if name in names)


def files() -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for name in imports(path):
        if name.startswith("covey.") and len(name.split(".")) > 1:
            other = name.split(".")[1]
            if (PACKAGE / other).is_dir() or (PACKAGE / f"{other}.py").is_file():
                assert layer(other) <= layer(own), f"{own} imports {other}"


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_the_outer_layers_know_torch_or_triton(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own in ("models", "sampling", "target", "drafters", "tritonio", "front", "server", "training", "tokenization"):
        return
    assert not {name for name in imports(path) if name.split(".")[0] in FOREIGN}


def test_the_client_needs_neither_the_server_s_package_nor_grpc_to_be_imported() -> None:
    heavy = {"covey", "grpc", "numpy", "tritonclient"}
    code = f"import sys, covey_client, covey_client.wire; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stdout.strip()


def configured(model: str, kind: str) -> dict[str, tuple[str, int]]:
    """The tensors that a model's configuration declares."""
    text = (REPOSITORY / "model_repository" / model / "config.pbtxt").read_text(encoding="utf-8")
    sections = [part for part in re.split(r"^(?=\w)", text, flags=re.MULTILINE) if part.startswith(f"{kind} [")]
    found = re.findall(r'name: "(\w+)" data_type: TYPE_(\w+) dims: \[ (-?\d+) \]', "".join(sections))
    return {name: ("BYTES" if dtype == "STRING" else dtype, int(dims)) for name, dtype, dims in found}


def test_configurations_declare_the_tables_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", type(sys)("triton_python_backend_utils"))
    from covey.tritonio import peers
    from covey.wire import codec

    inputs = {field.name: (field.dtype, -1 if field.many else 1) for field in wire.INPUTS}
    outputs = {field.name: (field.dtype, -1 if field.many else 1) for field in wire.OUTPUTS}
    assert configured("covey_unary", "input") == inputs
    assert configured("covey_unary", "output") == outputs
    assert configured("covey", "input") == inputs | {peers.ASKS_FOR_STATE: ("BOOL", 1), peers.INSPECT: ("BYTES", 1)}
    assert configured("covey", "output") == outputs | {peers.STATE: ("BYTES", 1), peers.REPORT: ("BYTES", 1)}
    assert configured("ensemble", "input") == {name: kind for name, kind in inputs.items() if name != "input_ids"}
    assert configured("ensemble", "output") == configured("detokenize", "output") == outputs
    passed = {name: kind for name, kind in outputs.items() if name != "text_output"}
    assert configured("detokenize", "input") == passed | {peers.STATE: ("BYTES", 1)}
    for model in ("target", *(path.parent.name for path in REPOSITORY.glob("model_repository/draft_*/config.pbtxt"))):
        assert configured(model, "input") == {codec.REQUEST_TENSOR: ("INT32", -1)}
        assert configured(model, "output") == {codec.REPLY_TENSOR: ("INT32", -1)}

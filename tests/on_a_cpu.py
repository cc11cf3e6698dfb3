"""`python on_a_cpu.py PYTHON FOLDER ...`: do what a server does, in one process on the CPU that is there.

It imports the packages, compiles the native runtime, and decodes a few tokens with the model in each folder. `PYTHON`
starts the compiler, because an emulated process starts only native ones by itself. A line of JSON tells the results.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

PACKAGES = (
    "numpy",
    "safetensors",
    "tokenizers",
    "llvmlite",
    "numba",
    "gguf",
    "llguidance",
    "psutil",
    "jinja2",
    "starlette",
    "uvicorn",
    "tritonclient.grpc",
    "torch",
    "transformers",
)
BEGAN = time.monotonic()
TEXT = "The capital of France is"
TOKENS = 8
COMPILER_SECONDS = 3600.0  # an emulated compiler is some 30 times slower


def tell(what: str) -> None:
    print(f"{time.monotonic() - BEGAN:.0f} s: {what}", file=sys.stderr, flush=True)


def compile_for_this_cpu() -> str:
    from covey.models.native import compiled

    compiled.PATIENT_SECONDS = COMPILER_SECONDS
    return compiled.ensure([compiled.MIXED], patient=True)


def decode(folder: str, numerics: str) -> dict[str, Any]:
    """Return greedy tokens of the model, and a digest of all logits on the way."""
    import numpy as np

    from covey.contracts.profile import TargetSettings
    from covey.target.runner import TargetRunner
    from covey.text.tokenization import load_tokenizer
    from tests.models.tiny_models import Reader

    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    settings = TargetSettings(device="cpu", kv_blocks=16, numerics=numerics)
    model: Any = TargetRunner.load(folder, settings, token_budget=64, name="target")._model
    tell(f"loaded {folder}")
    prompt = np.array(tokenizer.encode(TEXT).ids, np.int32)
    reader, digest, read = Reader(model, [prompt], room=TOKENS), hashlib.sha256(), 0
    for _ in range(TOKENS):
        row = reader.rows[0]
        logits = reader.read([(0, read, len(row))])[0].numpy()
        digest.update(logits.tobytes())
        read = len(row)
        reader.rows[0] = np.append(row, np.int32(logits[-1].argmax()))
    tokens = reader.rows[0][len(prompt) :].tolist()
    return {
        "runtime": type(model).__name__,
        "dtype": model.dtype if isinstance(model.dtype, str) else str(model.dtype).removeprefix("torch."),
        "numerics": model.numerics,
        "tokens": tokens,
        "text": tokenizer.decode(tokens),
        "logits": digest.hexdigest(),
    }


def main(python: str, *folders: str) -> None:
    for package in PACKAGES:
        importlib.import_module(package)
        tell(f"imported {package}")
    sys.executable = python
    import torch

    from covey.process import cpu

    found: dict[str, Any] = {
        "label": cpu.label(),
        "features": sorted(cpu.features()),
        "torch": torch.backends.cpu.get_cpu_capability(),
        "compiler": compile_for_this_cpu(),
    }
    tell(f"compiled: {found['compiler'] or 'for ' + found['label']}")
    for number, folder in enumerate(folders):
        # Only the first model has to prove that its passes are invariant: for a large one that takes an hour.
        found[Path(folder).name] = decode(folder, "fast" if number else "auto")
        tell(f"decoded with {folder}")
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

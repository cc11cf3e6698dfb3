"""Compiles kernels for a GPU that need not be here, so that what does not compile shows on any machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

_COMPILE = """
import importlib, json, re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
for variant in json.load(sys.stdin):
    kernel = getattr(importlib.import_module(variant["module"]), variant["kernel"])
    names = kernel.arg_names
    signature = {name: "constexpr" for name in variant["constants"]} | variant["signature"]
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in variant["aligned"]}
    source = ASTSource(kernel, signature, variant["constants"], attrs=aligned)
    options = {"num_warps": variant["warps"], "num_stages": variant["stages"]} | variant["options"]
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    ptx = made.asm["ptx"]
    print(json.dumps({"shared": made.metadata.shared, "ptx": ptx}), flush=True)
"""


@dataclass(frozen=True)
class Variant:
    """One kernel with the types of its arguments (`*bf16`, `i32`, ...) and its constants; pointers and the names in
    `aligned` are divisible by 16, as PyTorch's allocations are."""

    module: str
    kernel: str
    signature: dict[str, str]
    constants: dict[str, Any]
    warps: int = 4
    stages: int = 2
    aligned: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Compiled:
    """What a kernel became: bytes of shared memory, and its PTX."""

    shared: int
    ptx: str

    @property
    def widest_load(self) -> int:
        """Bytes of the widest load from global memory, asynchronous copies included."""
        widths = {"v4.b32": 16, "v2.b64": 16, "v2.b32": 8, "b64": 8, "b32": 4, "b16": 2, "b8": 1}
        found = [
            width
            for line in self.ptx.splitlines()
            if "ld.global" in line
            for name, width in widths.items()
            if f".{name} " in line
        ]
        found += [16 for line in self.ptx.splitlines() if "cp.async" in line and (", 16" in line or ", 0x10" in line)]
        return max(found, default=0)


def compile_for_hopper(*variants: Variant) -> list[Compiled]:
    """Compiles in a process of its own: in this one kernels may be interpreted. Fails where a kernel does not compile
    or its registers do not suffice."""
    given = []
    for variant in variants:
        pointers = [name for name, kind in variant.signature.items() if kind.startswith("*")]
        given.append(asdict(variant) | {"aligned": sorted({*pointers, *variant.aligned})})
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-c", _COMPILE],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return [Compiled(**json.loads(line)) for line in ran.stdout.splitlines()]

"""GPU kernels in the Triton language, each with the function that launches it.

A launch allocates nothing and waits for nothing, so that it can be captured in a CUDA graph: outputs are given, and
what changes from pass to pass is read from device memory. With TRITON_INTERPRET=1 in the environment before the first
import, the same kernels run on CPU tensors, slowly; tests do that where there is no GPU.
"""

from __future__ import annotations

import os

PRECISION = "tf32x3"  # float32 products are three of tensor cores, where exact ones take none and spill registers
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # products of the interpreter know no bfloat16: widen first

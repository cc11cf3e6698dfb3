"""GPU kernels in the Triton language, each with the function that launches it.

A launch neither allocates nor waits, so that a CUDA graph can record it. The caller provides outputs. Inputs that
change from pass to pass are read from device memory. With TRITON_INTERPRET=1 in the environment before the first
import, the same kernels run on CPU tensors, slowly; tests without a GPU do that.
"""

from __future__ import annotations

import os

PRECISION = "tf32x3"  # a float32 product as three on tensor cores; exact ones use no tensor core and spill registers
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # the interpreter cannot multiply bfloat16: widen first

"""`python -m covey.models.native FOLDER`: compile what models need on this CPU, so that the first server need not."""

from __future__ import annotations

import sys

from covey.models.native import KINDS, SMALL
from covey.models.native.model import NativeModel

print("covey: compiling for this CPU; half a minute, once", flush=True)
for dtype in (*KINDS, SMALL):
    NativeModel(sys.argv[1], dtype=dtype, blocks=1, threads=1, numerics="fast", max_pass_tokens=1).prepare_chains()

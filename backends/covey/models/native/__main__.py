"""`python -m covey.models.native`: compile what models need on this CPU, so that the first server need not."""

from __future__ import annotations

from covey.models.native import compiled
from covey.process import cpu

if compiled.missing(compiled.USUAL):
    print(f"covey: compiling for {cpu.label()}; half a minute, once", flush=True)
reason = compiled.ensure(compiled.USUAL, patient=True)
if reason:
    print(f"covey: PyTorch will compute all models here: {reason}", flush=True)

"""`python -m covey.models.native`: compile what models need on this CPU, so that the first server need not."""

from __future__ import annotations

import sys

from covey.contracts.errors import SettingError
from covey.models.native import compiled
from covey.process import cpu

try:
    if compiled.missing(compiled.USUAL):
        print(f"covey: compiling for {cpu.label()}; half a minute, once", flush=True)
    reason = compiled.ensure(compiled.USUAL, patient=True)
except SettingError as error:
    sys.exit(f"covey: {error}")
if reason:
    print(f"covey: PyTorch will compute all models here: {reason}", flush=True)

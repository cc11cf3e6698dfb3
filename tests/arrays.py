"""Arrays as messages and passes have them."""

from __future__ import annotations

import numpy as np

from covey.contracts.types import Ints


def ints(*values: int) -> Ints:
    return np.asarray(values, np.int32)

from __future__ import annotations

import warnings

with warnings.catch_warnings():  # Ray's own, of its own code, when it is first imported
    warnings.simplefilter("ignore")
    import ray.serve  # noqa: F401

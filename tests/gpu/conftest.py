"""Kernels run in their language's interpreter where there is no GPU."""

from __future__ import annotations

from tests.interpreted import patch_once

patch_once()

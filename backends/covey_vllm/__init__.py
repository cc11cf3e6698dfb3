"""Covey's planner and drafters inside vLLM, by its interface for proposers of one's own: docs/vllm.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from covey_vllm.proposer import CoveyProposer

__all__ = ["CoveyProposer"]


def __getattr__(name: str) -> Any:
    """Import the proposer, and torch with it, when vLLM asks for it: the public model's process needs neither."""
    if name != "CoveyProposer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from covey_vllm.proposer import CoveyProposer

    return CoveyProposer

"""Covey's planner and drafters inside vLLM, through its interface for custom proposers: docs/vllm.md."""

from covey_vllm.proposer import CoveyProposer

__all__ = ["CoveyProposer"]

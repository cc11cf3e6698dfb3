"""Covey's planner and drafters inside vLLM, by its interface for proposers of one's own: docs/vllm.md."""

from covey_vllm.proposer import CoveyProposer

__all__ = ["CoveyProposer"]

"""Candidate trees as packed arrays, and which of their nodes to verify."""

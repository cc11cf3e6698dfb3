"""Candidate trees as packed arrays, and the choice of nodes to verify."""

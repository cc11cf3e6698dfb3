"""Simulates: virtual time, and policies against simulated devices."""

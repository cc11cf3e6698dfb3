"""Chooses drafters for requests that name none."""

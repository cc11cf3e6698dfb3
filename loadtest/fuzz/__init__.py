"""Requests by the hundred thousand that no client would send: `python -m loadtest.fuzz`."""

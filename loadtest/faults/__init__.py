"""Faults by the hundred in a real server under load: `python -m loadtest.faults`."""

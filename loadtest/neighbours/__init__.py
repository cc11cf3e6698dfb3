"""What one tenant has to wait for another: `python -m loadtest.neighbours`."""

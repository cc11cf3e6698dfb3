"""Makes drafters and EAGLE-3 heads for any target, and synthetic pairs. Start at `__main__`."""

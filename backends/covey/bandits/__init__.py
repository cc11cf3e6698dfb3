"""Bandits over draft depths, one small file each. They learn from a round's outcome and choose the next depth."""

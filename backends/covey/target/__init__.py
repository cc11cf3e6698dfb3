"""The target in process: passes, draws, verification, commit."""

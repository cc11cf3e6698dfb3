"""The model whose output is wanted, in process: passes over it, draws, verification, commit."""

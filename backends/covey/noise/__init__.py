"""Noise that depends only on seed, position and token, in NumPy or PyTorch, with the same bits in both."""

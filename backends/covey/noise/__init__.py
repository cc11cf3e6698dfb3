"""Noise that depends on seed, position and token alone, over arrays of NumPy or PyTorch, with the same bits in both."""

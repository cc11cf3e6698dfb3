"""Draws tokens from logits, by the noise of (seed, position, token), and by the rules of speculative sampling."""

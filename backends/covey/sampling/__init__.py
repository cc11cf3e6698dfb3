"""Draws tokens from logits, by the noise of (seed, position, token) or by the rules of speculative sampling."""

"""From logits to drawn tokens, by the noise of (seed, position, token), and the rules of speculative sampling."""

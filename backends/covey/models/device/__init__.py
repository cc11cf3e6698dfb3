"""A device's memory: keys and values that grow and shrink, and weights on their way there."""

"""Trains the models in the box: a tokenizer, a target, and drafters distilled from it. Start at `__main__`."""

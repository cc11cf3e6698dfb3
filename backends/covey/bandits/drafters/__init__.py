"""Bandits over drafters, one for each request. They learn from a round's reward and choose the next drafter."""

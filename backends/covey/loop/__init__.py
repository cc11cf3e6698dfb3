"""The round loop, `engine.py`, and what it does there: ask drafters, have them leave, measure what rounds take."""

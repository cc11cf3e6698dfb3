"""The round loop (`engine.py`) and its parts: drafting, memory moves, and measuring what rounds take."""

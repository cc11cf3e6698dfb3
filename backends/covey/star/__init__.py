"""A drafter for several servers: who may call it, and how the others reach it."""

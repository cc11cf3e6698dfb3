"""A target spread over several devices: one process for each, every weight matrix cut by the plan of its model's class.

Rank 0 is the target's own process and the only one that others talk to. It starts the rest (`python -m
covey.models.parallel`), sends each of them every pass before it runs it itself, and they all meet in the sums and
gathers of the layers. A rank that dies takes the others with it; whoever reloads the target starts them anew.
"""

"""What runs in a process of its own: the peers' under their own Python, without Covey."""

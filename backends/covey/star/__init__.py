"""One drafter for the targets of several servers: its queue, its callers, and its measured speed."""

"""One drafter for the targets of several servers: its queue, whom it serves and how much, and what it measures."""

"""What a round should speculate: how deep and wide, with which drafter, for whom."""

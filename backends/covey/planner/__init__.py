"""What a round should speculate: how deep and wide, for whom. Which drafter a row has its request says."""

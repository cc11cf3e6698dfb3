"""`python -m loadtest.soak`: mixed load for a long while, and whether the server's memory stays where it was."""

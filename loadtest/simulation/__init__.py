"""Virtual time, and policies against simulated devices."""

"""The command `python -m covey.training`. The package is `covey_training`."""

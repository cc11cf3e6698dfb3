"""`python -m covey.training` is the command of `covey_training`, whose imports take seconds."""

import sys

from rich.console import Console

with Console(stderr=True).status("loading PyTorch"):
    from covey_training.__main__ import main

if __name__ == "__main__":
    main(sys.argv[1:])

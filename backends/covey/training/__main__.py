"""`python -m covey.training` is the command of `covey_training`."""

import sys

from covey_training.__main__ import main

if __name__ == "__main__":
    main(sys.argv[1:])

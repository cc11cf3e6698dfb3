"""The subcommands of `covey`, one module each: `add(subparsers)` declares it and names what runs it."""

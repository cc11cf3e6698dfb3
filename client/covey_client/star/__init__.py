"""One drafter for several targets: what that brings, by a formula."""

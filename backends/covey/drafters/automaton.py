"""A suffix automaton that grows token by token and counts occurrences.

A state stands for all runs of tokens that end at the same places. `link` leads to their longest suffix that ends in
more places. See Blumer et al. (1985). Several texts may be read one after another.
"""

from __future__ import annotations

ROOT = 0


class SuffixAutomaton:
    """States are numbers, the root is 0. `counts[s]` is how often the runs of state s occur. A token updates at most
    `_CLIMB` states, which bounds its time in a text that repeats endlessly."""

    _CLIMB = 64

    def __init__(self) -> None:
        self.steps: list[dict[int, int]] = [{}]
        self.link = [-1]
        self.length = [0]
        self.counts = [0]
        self.read = 0  # number of tokens
        self.last = ROOT  # the state of the whole text read since `restart`

    def restart(self) -> None:
        """Begin another text with the next token."""
        self.last = ROOT

    def append(self, token: int) -> None:
        self.read += 1
        last = self.last
        following = self.steps[last].get(token)
        if following is not None:  # an earlier text continued in the same way
            exact = self.length[following] == self.length[last] + 1
            self.last = following if exact else self._split(last, token, following)
        else:
            self.last = new = self._state(self.length[last] + 1, {})
            at = last
            while at >= 0 and token not in self.steps[at]:
                self.steps[at][token] = new
                at = self.link[at]
            if at < 0:
                self.link[new] = ROOT
            else:
                following = self.steps[at][token]
                exact = self.length[following] == self.length[at] + 1
                self.link[new] = following if exact else self._split(at, token, following)
        at, climbed = self.last, 0
        while at > ROOT and climbed < self._CLIMB:
            self.counts[at] += 1
            at = self.link[at]
            climbed += 1

    def advance(self, state: int, length: int, token: int) -> tuple[int, int]:
        """Return the state and length of the longest known suffix of (the run of `length` at `state`) + token."""
        while state >= 0:
            following = self.steps[state].get(token)
            if following is not None:
                return following, length + 1
            state = self.link[state]
            length = self.length[state] if state >= 0 else 0
        return ROOT, 0

    def _state(self, length: int, steps: dict[int, int]) -> int:
        self.steps.append(steps)
        self.link.append(-1)
        self.length.append(length)
        self.counts.append(0)
        return len(self.length) - 1

    def _split(self, at: int, token: int, state: int) -> int:
        """Split off a new state for the shorter runs of `state`, and return it."""
        clone = self._state(self.length[at] + 1, dict(self.steps[state]))
        self.link[clone], self.link[state] = self.link[state], clone
        self.counts[clone] = self.counts[state]
        while at >= 0 and self.steps[at].get(token) == state:
            self.steps[at][token] = clone
            at = self.link[at]
        return clone

"""The planner decides how deep and wide a round drafts, and by which drafters unless a request names its own.

planner.py        the interface to the engine; round_planner.py implements it: READ THESE FIRST
drafters/         who drafts for each row
covey.py          how deep, by default; other policies are bandits (`covey.bandits`)
rows.py           lays the depth out over rows;  offers.py: what texts offer is taken into the plan
selection.py      which drafts are verified; worth.py and adaserve.py choose single nodes (candidates.py), and look at
                  requests' objectives (standing.py)
lessons.py        what a round teaches
build.py          makes all of it as a profile says;  guarded.py: a planner that fails

Each quantity is estimated in one place. What `expectations.py` makes of them, tokens and seconds of a round by depth,
is what all parts of a planner ask, and the round planner has it taught once a round.

tokens    acceptance.py, by drafter and position; drafters/beliefs.py, by request; calibration.py, by drafted node
seconds   costs.py: passes, drafts and what goes on around them, by regression.py
extras    switching.py: catch-up before the first draft
          offers.py: rounds with drafts that nobody made;  drafters/interference.py: reading beside a round
baseline  baseline.py: the time of a plain token of one request on an idle server, of which objectives are multiples

Nothing of it outlives the process but measured costs (`covey.loop.measure`).
"""

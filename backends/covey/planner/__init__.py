"""The planner decides how deep and wide a round drafts, and by which drafters unless a request names its own.

planner.py        the interface to the engine; round_planner.py implements it: READ THESE FIRST
drafters/         who drafts for each row
covey.py          how deep, by default (other policies are bandits: `covey.bandits`), from expectations.py: tokens by
                  acceptance.py, seconds by costs.py, switching.py and change_cost.py
rows.py           lays the depth out over rows
selection.py      which drafts are verified; worth.py and adaserve.py choose single nodes (candidates.py), and look at
                  requests' objectives (standing.py)
lessons.py        what a round teaches;  baseline.py: the time of a plain token
build.py          makes all of it as a profile says;  guarded.py: a planner that fails
"""

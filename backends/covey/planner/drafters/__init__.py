"""Chooses the drafter of each row whose request names none.

policy.py         the interface, and the policy that takes the first drafter
covey.py          the default: the set of drafters with the most tokens per second (joint.py), by the tokens that
                  each request is expected to accept (beliefs.py, neighbours.py)
read_scheduler.py lets drafters read text that others drafted, at a price (interference.py); replay.py: what that shows
bandits.py        one bandit for each request (`covey.bandits.drafters`)
"""

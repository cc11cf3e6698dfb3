"""Chooses the drafter of each row whose request names none.

policy.py         the interface, and the policy that takes the first drafter
covey.py          the default: the set of drafters that brings most in the time they take (joint.py), by what is
                  believed of each request (beliefs.py, neighbours.py)
read_scheduler.py who reads what others drafted, at what price (interference.py); replay.py: what that says
bandits.py        one bandit for each request (`covey.bandits.drafters`)
"""

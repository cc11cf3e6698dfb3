"""Chooses the drafter of each row whose request names none.

policy.py   the interface, and the policy that takes the first drafter
bandits.py  one bandit for each request (`covey.bandits.drafters`)
"""

"""Predicts by a formula the gain of one drafter for several targets."""

"""Predicts by a formula what one drafter for several targets brings."""

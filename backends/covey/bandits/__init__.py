"""Bandits over draft depths: one small file each, told what happened and asked what to play next."""

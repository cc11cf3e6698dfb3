"""Policies over draft depths, one small file each; policy.py is their interface."""

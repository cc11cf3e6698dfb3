"""Emulated devices: the usual ports, at the speed of a cost table."""

"""Devices that are not here, behind the same ports, at the pace of a cost table."""

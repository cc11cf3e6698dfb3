"""The types, ports, errors and settings that all packages share. They know no other package."""

"""The types, ports, errors and settings that all packages share. They depend on no other package."""

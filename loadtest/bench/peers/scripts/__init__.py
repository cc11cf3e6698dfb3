"""These scripts run in separate processes, the peers' under their own Python and without Covey."""

"""These scripts run in processes of their own, the peers' under their own Python and without Covey."""

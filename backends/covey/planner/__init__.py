"""The planner decides how deep and wide a round drafts, and by which drafters unless a request names its own."""

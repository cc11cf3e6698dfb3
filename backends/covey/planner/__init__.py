"""The planner decides how deep and wide a round drafts, and by which drafters. A request that names its drafter decides
that itself."""

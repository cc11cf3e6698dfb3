"""The planner: how deep and wide a round speculates, and for whom. A request that names its drafter decides that
itself."""

"""Chooses a request's replica with Ray's own router: by prefix, then by queue. Only two kinds of answers avoid some
replicas: one that continues elsewhere, and one that a replica has just refused.

Ray pickles this module by value, so classes that other modules must recognise are in `covey_ray.asked`.
"""

from __future__ import annotations

from typing import Any

import ray

# The public name, ray.serve.llm.request_router, imports what only ray[llm] installs.
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import PrefixCacheAffinityRouter
from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTreeActor
from ray.serve.request_router import PendingRequest, RunningReplica
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from covey_ray.asked import Asked


class Router(PrefixCacheAffinityRouter):  # type: ignore[misc]  # Ray's has no types
    """The router in the ingress' process."""

    def initialize_state(self, **given: Any) -> None:
        """Keep the record of sent prefixes in an actor on the ingress' node, which ends with the ingress. On another
        node it would take all routing down when that node dies."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        tree = PrefixTreeActor.options(num_cpus=0, scheduling_strategy=here).remote()
        super().initialize_state(tree_actor=tree, do_eviction=True, **given)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return ranks of replicas. From the first rank, Ray takes a replica with the shortest queue."""
        asked = pending_request.args[0] if pending_request is not None and pending_request.args else None
        if pending_request is not None and isinstance(asked, Asked) and (asked.identity or asked.avoid):
            suited = [each for each in candidate_replicas if suits(asked, each)]
            if suited:
                pending_request.routing_context.should_backoff = True
                return [suited]
        found: list[list[RunningReplica]] = await super().choose_replicas(candidate_replicas, pending_request)
        return found


def suits(asked: Asked, replica: RunningReplica) -> bool:
    if replica.replica_id.unique_id in asked.avoid:
        return False
    return asked.identity in ("", replica.replica_metadata.get("identity"))

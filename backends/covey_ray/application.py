"""The Serve application: servers behind one ingress.

Each deployment asks Ray for the resources that its profile needs. A Serve configuration may change any of them by name.
"""

from __future__ import annotations

from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.deployment import Application

from covey.contracts import profile
from covey_ray.ingress import Ingress
from covey_ray.resources import asks
from covey_ray.routing import Router
from covey_ray.server import Server
from covey_ray.settings import Settings

IN_FLIGHT = 10_000  # requests at an ingress, which only waits for them
SPREAD = 4  # a replica with a known prefix may have this many more requests than the least busy one
END_SECONDS = 10.0  # for a server to end after its answers have ended


def app(args: dict[str, Any]) -> Application:
    """Build the application of `import_path: covey_ray:app`; `args` are `covey_ray.settings`."""
    settings = Settings.model_validate(args)
    own = profile.load(settings.profile)
    most = own.scheduler.max_running + own.scheduler.max_waiting
    servers = serve.deployment(Server).options(
        max_ongoing_requests=most,
        max_queued_requests=most,
        graceful_shutdown_timeout_s=settings.drain_seconds + END_SECONDS,
        request_router_config=RequestRouterConfig(
            request_router_class=Router, request_router_kwargs={"imbalanced_threshold": SPREAD}
        ),
        ray_actor_options={"num_cpus": 1} if settings.command else asks(own, settings.model),
    )
    ingress = serve.deployment(Ingress).options(max_ongoing_requests=IN_FLIGHT, ray_actor_options={"num_cpus": 0.1})
    bounds = own.front.message_bytes, own.front.read_seconds
    return ingress.bind(servers.bind(settings), bounds, seeds=not settings.command)

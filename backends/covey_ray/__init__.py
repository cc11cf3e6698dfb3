"""Serves Covey's servers as replicas of a Ray Serve application: `serve run covey_ray:app profile=demo-cpu`."""

from covey_ray.application import app

__all__ = ["app"]

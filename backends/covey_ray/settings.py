"""The settings that a Serve configuration gives to `covey_ray:app` under `args`. The number of replicas and their
places are settings of Serve's own, under `deployments`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from covey.contracts.profile import DEFAULT_PROFILE
from covey_client.star.model import Star


class Times(BaseModel):
    """The timings that `covey plan-star` is given, by its names."""

    model_config = ConfigDict(extra="forbid")

    step_ms: float
    verify_ms: float
    plain_ms: float
    transfer_ms: float = 0.0
    acceptance: float
    depth: int = 4

    def most(self) -> int:
        """Return the most targets of one draft server with which none is slower than alone (N_max)."""
        step, verify, transfer, plain = (
            each / 1000 for each in (self.step_ms, self.verify_ms, self.transfer_ms, self.plain_ms)
        )
        return Star(step, verify, transfer, self.acceptance, self.depth, plain).most


class Settings(BaseModel):
    """The settings of one application. Paths, and profiles that are files, are there on every node."""

    model_config = ConfigDict(extra="forbid")

    profile: str = DEFAULT_PROFILE  # of each server, a name or a file
    model: str = ""  # its target, as the launcher takes it; "": the profile's
    # What a replica runs in a Covey server's place: it serves OpenAI's API on 127.0.0.1 at {port}.
    command: list[str] = Field(default_factory=list)
    drain_seconds: float = Field(30.0, gt=0)  # that the streams of a replica which is to go may still take
    drafters: str = ""  # profile of the draft servers; "": there are none
    star: Times | None = None  # how many servers each of them drafts for

    @model_validator(mode="after")
    def _drafted_for(self) -> Settings:
        if bool(self.drafters) != (self.star is not None):
            raise ValueError("drafters and star: give both, or neither")
        if self.star is not None and not self.star.most():
            raise ValueError("star: with these times a drafter gains not even one target anything (covey plan-star)")
        if self.command and not any("{port}" in word for word in self.command):
            raise ValueError("command: one of its words has to say {port}, where it is to serve")
        if self.command and (self.drafters or self.model):
            raise ValueError("command: whatever it runs is told its model and its drafters by its own words")
        return self

"""The settings that a Serve configuration gives to `covey_ray:app` under `args`. The number of replicas and their
places are settings of Serve's own, under `deployments`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from covey.contracts.profile import DEFAULT_PROFILE


class Settings(BaseModel):
    """The settings of one application. Paths, and profiles that are files, are there on every node."""

    model_config = ConfigDict(extra="forbid")

    profile: str = DEFAULT_PROFILE  # of each server, a name or a file
    model: str = ""  # its target, as the launcher takes it; "": the profile's
    # What a replica runs in a Covey server's place: it serves OpenAI's API on 127.0.0.1 at {port}.
    command: list[str] = Field(default_factory=list)
    drain_seconds: float = Field(30.0, gt=0)  # that the streams of a replica which is to go may still take

    @model_validator(mode="after")
    def _serves(self) -> Settings:
        if self.command and not any("{port}" in word for word in self.command):
            raise ValueError("command: one of its words has to say {port}, where it is to serve")
        if self.command and self.model:
            raise ValueError("command: whatever it runs is told its model by its own words")
        return self

"""The settings that a Serve configuration gives to `covey_ray:app` under `args`. The number and placement of replicas
are Serve's own settings, under `deployments`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from covey.contracts.profile import DEFAULT_PROFILE


class Settings(BaseModel):
    """The settings of one application. Paths, including profiles that are files, must exist on every node."""

    model_config = ConfigDict(extra="forbid")

    profile: str = DEFAULT_PROFILE  # of each server, a name or a file
    model: str = ""  # its target, in the launcher's form; "": the profile's
    # A command to run in place of a Covey server; it serves OpenAI's API on 127.0.0.1 at {port}.
    command: list[str] = Field(default_factory=list)
    drain_seconds: float = Field(30.0, gt=0)  # the time that streams of a stopping replica get to finish

    @model_validator(mode="after")
    def _serves(self) -> Settings:
        if self.command and not any("{port}" in word for word in self.command):
            raise ValueError("command: one of its words must contain {port}, the port to serve on")
        if self.command and self.model:
            raise ValueError("command: give the model in the command's own words, not in model")
        return self

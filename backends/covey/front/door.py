"""What both protocols, and later ones, stand on: who may ask now, and the answers of the server behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from covey.contracts.profile import Profile
from covey.front.admission import DOWN, Admission, Caller
from covey.front.asked import Asked
from covey.front.openai.texts import Texts
from covey.front.openai.workers import Workers
from covey.front.upstream import Upstream
from covey_client.async_client import AsyncStream
from covey_client.errors import Overloaded
from covey_client.response import Completion
from covey_client.wire import MODEL


class Gone(Exception):
    """The caller has left; nobody is to be told."""


class Door:
    """One front's; made in the event loop."""

    def __init__(
        self,
        profile: Profile,
        grpc_url: str,
        metrics_url: str,
        deaths: int,
        folders: Mapping[str, str],
        names: Sequence[str] = (),
    ) -> None:
        """`folders` of the targets, by name where there are several. `names` are those by which OpenAI's routes know
        the model; without any it is `covey`."""
        self.names = tuple(names) or (MODEL,)
        self.settings = profile.front
        self.prompt_bytes = profile.limits.prompt_bytes
        self.most_tokens = profile.limits.max_tokens  # of a request that says nothing
        self.workers = Workers(self.prompt_bytes, self.settings.message_bytes)
        self.texts = {name: Texts(folder, self.workers) for name, folder in folders.items()}
        self.admission = Admission(profile.front)
        self.upstream = Upstream(grpc_url, metrics_url, deaths, lambda: self.admission.draining)

    @property
    def ready(self) -> bool:
        return self.upstream.up and not self.admission.draining

    def announced(self, caller: Caller, size: int) -> None:
        """A request of so many bytes, which may still be on its way. Raises Overloaded."""
        self.admission.announce(caller.name, size)
        if not self.upstream.up:
            raise Overloaded(DOWN)

    @contextmanager
    def admitted(self, caller: Caller, size: int | None = None) -> Iterator[None]:
        """While one request is in flight; of so many bytes, where that is not announced. Raises Overloaded."""
        if size is not None:
            self.announced(caller, size)
        with self.admission.place(caller.name):
            yield

    def stream(self, asked: Asked, caller: Caller, seconds: float | None = None) -> AsyncStream:
        """Raises InvalidRequest or TooMany where it names a tenant that it may not name."""
        named = self.admission.tenant(caller, str(asked.settings.get("tenant", "")))
        asked = replace(asked, settings={**asked.settings, "tenant": named})
        most = self.settings.answer_seconds
        return self.upstream.answer(asked, most if seconds is None else min(seconds, most))

    async def whole(self, asked: Asked, caller: Caller, seconds: float | None = None) -> Completion:
        async with self.stream(asked, caller, seconds) as stream:
            return Completion.join([chunk async for chunk in stream])

"""The extension by which vLLM's workers can be asked more than their own methods allow:
`worker_extension_cls="covey_vllm.extension.Extension"`.

By it whoever serves the engine reaches the proposer, and gives it what its call lacks: which request each row is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from covey.contracts.types import JsonDict


class Extension:
    """Mixed into vLLM's worker, whose `model_runner` has the proposer and the requests."""

    model_runner: Any

    def covey_attend(self) -> None:
        """Have rows known by vLLM's own names, and rounds told."""
        runner = self.model_runner
        runner.drafter.attend(lambda: [runner.requests[name] for name in runner.input_batch.req_ids], runner.requests)

    def covey_news(self) -> JsonDict | None:
        found: JsonDict | None = self.model_runner.drafter.news()
        return found

    def covey_drafts_of(self, names: Sequence[str]) -> list[JsonDict]:
        found: list[JsonDict] = self.model_runner.drafter.drafts_of(names)
        return found

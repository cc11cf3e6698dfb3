"""Public fields of requests that vLLM has no place for: refused by name, unless they ask for what is so anyway."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from covey.contracts.errors import BadField
from covey.contracts.types import Rule
from covey.tritonio.fields import FieldReader, RequestParser, Wanted
from covey_client.wire import INPUT_BY_NAME

BESIDE_DRAFTS = "vLLM has none beside drafts"
BY_PRIORITY = "vLLM goes by priority and arrival"
REFUSED: Mapping[str, str] = {
    "min_p": BESIDE_DRAFTS,
    "logit_bias_ids": BESIDE_DRAFTS,
    "logit_bias": BESIDE_DRAFTS,
    "return_prompt_log_probs": "vLLM's own server has them",
    "slo_class": BY_PRIORITY,
    "slo_ttft_ms": BY_PRIORITY,
    "slo_tpot_ms": BY_PRIORITY,
}
GRAMMARS = {"grammar_json": "json", "grammar_regex": "regex", "grammar_lark": "grammar"}  # in vLLM's words
OF_OUTPUT = ("presence_penalty", "frequency_penalty", "min_tokens")


class VllmParser(RequestParser):
    """Checks requests against one target that vLLM serves."""

    def __init__(self, *given: Any, depth: int, **named: Any) -> None:
        """`depth` is that of the deepest draft that vLLM takes."""
        super().__init__(*given, **named)
        self._depth = depth

    def parse(
        self, key: int, arrival: float, tensor: Callable[[str], Any], parameters: dict[str, Any] | None = None
    ) -> Wanted:
        _check(tensor)
        wanted = super().parse(key, arrival, tensor, parameters)
        request = wanted.request
        mode, _, depth = request.speculation.partition(":")
        if mode == "fixed" and int(depth) > self._depth:
            raise BadField("speculation", request.speculation, f"fixed:{self._depth} at most, as vLLM was started")
        if request.num_prompt < len(request.prompt) and any(getattr(request.sampling, name) for name in OF_OUTPUT):
            allowed = f"all of input_ids beside {', '.join(OF_OUTPUT)}: to vLLM they all are the prompt"
            raise BadField("num_prompt_tokens", request.num_prompt, allowed)
        return wanted

    def _grammar(self, read: FieldReader, end_id: int) -> str:
        """Return the grammar as JSON, its kind in vLLM's words and its text: vLLM compiles it once more."""
        if not super()._grammar(read, end_id):
            return ""
        name, text = self._asked_grammar(read)
        return json.dumps([GRAMMARS[name], text])


def _check(tensor: Callable[[str], Any]) -> None:
    for name, why in REFUSED.items():
        value = tensor(name)
        if value is not None and any(each not in (INPUT_BY_NAME[name].default, b"") for each in value.reshape(-1)):
            raise BadField(name, value.reshape(-1).tolist(), f"to leave it out: {why}")
    rule = tensor("verification")
    if rule is not None and rule.size == 1 and rule.reshape(-1)[0] == Rule.COUPLED.value.encode():
        raise BadField("verification", Rule.COUPLED.value, f"{Rule.REJECTION.value}, vLLM's own, or to leave it out")

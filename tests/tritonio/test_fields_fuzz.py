"""Whatever tensors a caller sends, of the types that the configuration says: a request, or an error that names a field.

Tensors come as Triton hands them over: any shape, bytes of any kind, numbers of any bits."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from covey.contracts.errors import BadField
from covey.contracts.profile import LimitSettings
from covey.contracts.types import Request
from covey.requests.roster import Roster
from covey.tritonio import fields
from covey_client.wire import INPUT_BY_NAME, INPUTS, Field
from tests.fakes import HashTarget, ManualClock
from tests.tritonio.test_slow_jobs import TOKENIZER

TYPES = {"INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32, "BOOL": np.bool_}
SHAPES = st.sampled_from([(1,), (0,), (2,), (1, 1), (3, 2), (1, 0), ()])
INTERESTING = (b"", b"a", b"auto", b"fixed:3", b"coupled", b"chat", b"\xff", b"\xed\xa0\x80", b"\x00", b" " * 5000)


def tensor(field: Field) -> st.SearchStrategy[Any]:
    if field.dtype == "BYTES":
        elements = st.sampled_from(INTERESTING) | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)
        return SHAPES.flatmap(lambda shape: arrays.arrays(np.object_, shape, elements=elements))
    return SHAPES.flatmap(lambda shape: arrays.arrays(TYPES[field.dtype], shape))


NAMES = st.sets(st.sampled_from([field.name for field in INPUTS]), max_size=8)
PARAMETERS = st.dictionaries(
    st.sampled_from(["triton_x", "x", "seed", "\ud800"]) | st.text(max_size=5), st.none() | st.integers() | st.text()
)
REQUESTS = NAMES.flatmap(lambda names: st.fixed_dictionaries({name: tensor(INPUT_BY_NAME[name]) for name in names}))
PARSER = fields.RequestParser(TOKENIZER, HashTarget().info(), LimitSettings(), Roster(("draft_a",), ManualClock()))


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(REQUESTS, st.sampled_from(["text_input", "input_ids", ""]), st.one_of(st.just({}), PARAMETERS))
def test_any_tensors_are_a_request_or_a_named_error(
    tensors: dict[str, Any], prompt: str, parameters: dict[str, Any]
) -> None:
    good = {"text_input": np.array([b"Once"], np.object_), "input_ids": np.array([5, 6], np.int32)}
    if prompt:
        tensors = {name: value for name, value in tensors.items() if name not in good} | {prompt: good[prompt]}
    refused: BadField | None = None
    try:
        fields.tenant_of(tensors.get)
        PARSER.prompt_bytes(tensors.get)
        found = PARSER.parse(1, 0.0, tensors.get, parameters)
    except BadField as error:
        refused = error
    if refused is None:
        assert isinstance(found.request, Request)
        scored = tensors.get("return_prompt_log_probs")
        least = 0 if scored is not None and scored.any() else 1  # its prompt's probabilities may be all it asks for
        assert found.request.max_tokens >= least
        assert len(found.request.prompt)
        return
    assert refused.field in INPUT_BY_NAME or refused.field in parameters
    assert re.match(r"(?s).*: got .*, allowed: .+", str(refused))
    assert len(str(refused)) < 600, "what was sent is not sent back whole"

"""Calls to a model of another server: what its errors become here."""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from covey.contracts.errors import PortError, PortTimeout
from covey.tritonio.grpc import GrpcModel, Unreachable
from covey.wire import codec

CASES = [
    ("StatusCode.DEADLINE_EXCEEDED", "Deadline Exceeded", PortTimeout, "Deadline"),
    ("StatusCode.UNAVAILABLE", "failed to connect", Unreachable, "failed to connect"),
    ("StatusCode.INTERNAL", "PortError: 16 calls wait already", PortError, "16 calls"),
    ("StatusCode.INTERNAL", "Stub process 'draft_0_0' is not healthy.", PortError, "its process there is gone"),
]


@pytest.mark.parametrize(("status", "said", "kind", "shown"), CASES)
def test_an_error_there_is_named_by_what_can_be_done(
    status: str, said: str, kind: type[PortError], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = GrpcModel("127.0.0.1:1", "draft")

    def infer(*_given: Any, **_named: Any) -> None:
        raise InferenceServerException(said, status)

    monkeypatch.setattr(model._client, "infer", infer)
    with pytest.raises(PortError, match=shown) as caught:
        model.exchange(codec.pack(codec.INFO_REQUEST), 1.0)
    assert type(caught.value) is kind
    assert "not healthy" not in str(caught.value), "it is not the asking model's process"
    model.close()

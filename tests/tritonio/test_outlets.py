"""Triton's response sender behind a lock."""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from tests.tritonio.adapters import load


def test_an_error_may_follow_a_last_response_that_could_not_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, "orchestrator")
    from covey.tritonio.outlets import Sender

    request = MagicMock()
    native = request.get_response_sender.return_value
    native.send.side_effect = [RuntimeError("shared memory is full"), None]
    sender = Sender(request)
    with pytest.raises(RuntimeError):
        sender.send("answer", last=True)
    sender.send("error", last=True)
    sender.send("too late", last=True)
    assert [call.args[0] for call in native.send.call_args_list] == ["answer", "error"]

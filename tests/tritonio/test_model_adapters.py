"""What Triton's models do by themselves, without Triton: how they begin and end, and what errors become."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from tritonclient.utils import InferenceServerException

from covey.contracts.errors import PortError, PortTimeout, SettingError
from covey.public_model import life
from covey.tritonio.grpc import GrpcModel, Unreachable
from covey.wire import codec
from tests.tritonio import adapters


def test_the_target_s_configuration_cannot_name_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module, _fake = adapters.load(monkeypatch, "target")
    loaded: list[object] = []
    monkeypatch.setattr(module, "load_target", lambda folder, *_rest, **_named: loaded.append(folder))
    entry = {"model_name": "target", "model_repository": str(tmp_path), "model_version": "1"}
    named = {"folder": {"string_value": "/elsewhere"}}
    with pytest.raises(SettingError, match=r"parameter folder: .* the profile \(target\.folder\) or with --model"):
        module.TritonPythonModel().initialize(entry | {"model_config": json.dumps({"parameters": named})})
    module.TritonPythonModel().initialize(entry | {"model_config": json.dumps({"parameters": {}})})
    assert loaded == [tmp_path / "1"]


def test_a_public_model_that_cannot_go_on_ends_its_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever brings back the dead must see it."""
    module, _fake = adapters.load(monkeypatch, "orchestrator")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(life, "SETTLE_SECONDS", 0.0)
    for part in ("Metrics", "Models"):
        monkeypatch.setattr(module, part, MagicMock())
    module.Models.return_value.service.side_effect = PortError("there is no target")
    killed: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    monkeypatch.setattr(module.os, "kill", lambda *given: killed.put(given))
    model = module.TritonPythonModel()
    model.initialize({"model_name": "covey", "model_config": '{"parameters": {}}'})
    assert killed.get(timeout=10) == (os.getpid(), signal.SIGKILL)
    model.finalize()


def test_an_error_may_follow_a_last_response_that_could_not_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    adapters.load(monkeypatch, "orchestrator")
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


ENDS = """
import atexit, sys
from pathlib import Path
from covey.tritonio import ending
ending.PROCESS = Path(sys.argv[1])
atexit.register(print, "never")
ending.at_once()
atexit.register(print, "said", flush=True)
sys.exit(3)
"""


@pytest.mark.parametrize(
    ("name", "status", "said"), [("triton_python_backend_stub", 0, "said"), ("python", 3, "said never")]
)
def test_who_ends_at_once(name: str, status: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "exe").symlink_to(tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path / "exe")], check=False, capture_output=True, text=True
    )
    assert done.returncode == status
    assert done.stdout.split() == said.split()


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

"""Administrative interfaces are for who has the server's secret, which this user's tools find by themselves."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from covey.contracts.errors import SettingError
from covey.launcher import Server, admin, shared_memory
from covey_client import Client, InvalidRequest, status
from covey_client import secret as tools
from covey_client.cli import main

Make = Callable[[], Any]

EVIL = "open({path!r}, 'w').close()\nclass TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
CONFIG = json.dumps({"name": "evil", "backend": "python"})


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Secrets are kept here."""
    monkeypatch.setattr(tools, "SHARED_MEMORY", tmp_path)
    return tools.folder()


def test_a_drawn_secret_is_this_user_s_alone(private: Path) -> None:
    one = admin.settle(8000, "")
    assert len(one) == 32
    assert tools.kept(8000) == one
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert stat.S_IMODE((private / "127.0.0.1_8000").stat().st_mode) == 0o600
    other = admin.settle(9000, "")
    again = admin.settle(8000, "")
    assert len({one, other, again}) == 3, "every start draws its own, whatever a killed server left"
    assert (tools.kept(8000), tools.kept(9000)) == (again, other)
    admin.forget(8000, one)
    assert tools.kept(8000) == again, "the old server's end is not the new one's"
    admin.forget(8000, again)
    admin.forget(8000, again)
    assert (tools.kept(8000), tools.kept(9000)) == ("", other)


def test_a_given_secret_is_kept_nowhere(private: Path) -> None:
    admin.settle(8000, "")
    assert admin.settle(8000, "open sesame") == "open sesame"
    assert list(private.iterdir()) == [], "what a killed server left is no longer believed either"


def test_a_secret_that_others_could_have_put_there_is_not_believed(private: Path) -> None:
    assert tools.kept(8000) == ""
    admin.settle(8000, "")
    private.chmod(0o777)
    with pytest.raises(InvalidRequest, match="can be changed by other users"):
        tools.kept(8000)
    with pytest.raises(SettingError, match="can be changed by other users"):
        admin.settle(8000, "")
    with pytest.raises(InvalidRequest, match="can be changed by other users"):
        status.read("127.0.0.1:8000")


@pytest.mark.usefixtures("private")
def test_no_other_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COVEY_ADMIN_SECRET", raising=False)
    drawn = admin.settle(8000, "")
    told: dict[str, str] = {}

    def ask(address: Any, _method: str, path: str, *, headers: dict[str, str], **_more: float) -> tuple[int, bytes]:
        if path == "/v2/repository/index":
            told[address.host] = headers.get("admin-key", "")
        return 403, b""

    monkeypatch.setattr(status, "ask", ask)
    for url in ("127.0.0.1:8000", "localhost:8000", "[::1]:8000", "10.1.2.3:8000", "example.org:8000"):
        status.read(url)
    assert told == {"127.0.0.1": drawn, "localhost": drawn, "::1": "", "10.1.2.3": "", "example.org": ""}


@pytest.fixture(scope="module")
def running(canned_folder: Make) -> Iterator[Server]:
    """Started as `make serve` does, without a secret in the environment, talkative."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COVEY_ADMIN_SECRET", raising=False)
        with canned_folder().server("covey", verbose=2) as server:
            yield server


def asked(server: Server, method: str, path: str, body: str = "", **headers: str) -> tuple[int, str]:
    """As a page in a browser of this machine asks: with another host's name and an origin, and no preflight."""
    connection = http.client.HTTPConnection("127.0.0.1", server.options.http_port, timeout=30)
    foreign = {"Host": "evil.example", "Origin": "http://evil.example", "Content-Type": "text/plain"}
    try:
        connection.request(method, path, body.encode(), foreign | headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    finally:
        connection.close()


@pytest.mark.e2e
def test_a_page_in_a_browser_cannot_run_code(running: Server, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    code = base64.b64encode(EVIL.format(path=str(ran)).encode()).decode()
    body = json.dumps({"parameters": {"config": CONFIG, "file:1/model.py": code}})
    for secret in ({}, {"admin-key": ""}, {"admin-key": "guess"}):
        answered, said = asked(running, "POST", "/v2/repository/models/evil/load", body, **secret)
        assert (answered, "restricted" in said) == (403, True), said
    assert not ran.exists()


@pytest.mark.e2e
def test_no_command_line_has_the_secret(running: Server) -> None:
    shown = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            shown.append(path.read_bytes())
    assert any(b"--http-restricted-api=" in line for line in shown)
    assert not any(tools.kept(running.options.http_port).encode() in line for line in shown)


@pytest.mark.e2e
def test_its_shared_memory_is_its_user_s_alone(running: Server) -> None:
    paths = list(shared_memory.FOLDER.glob(f"covey_{running.options.http_port}_*"))
    assert len(paths) > 1
    assert {stat.S_IMODE(path.stat().st_mode) for path in paths} == {0o600}


@pytest.mark.e2e
def test_a_grpc_client_cannot_run_code(running: Server, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    files = {"file:1/model.py": EVIL.format(path=str(ran)).encode()}
    with tritonclient.grpc.InferenceServerClient(running.grpc_url) as client:
        for headers in ({}, {"triton-grpc-protocol-admin-key": "guess"}):
            with pytest.raises(InferenceServerException, match="restricted"):
                client.load_model("evil", headers=headers, config=CONFIG, files=files)
        assert client.is_server_ready()
        known = {"triton-grpc-protocol-admin-key": tools.kept(running.options.http_port)}
        assert [model.name for model in client.get_model_repository_index(headers=known).models] == ["covey"]
    assert not ran.exists()


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/repository/models/covey/unload"),
        ("GET", "/v2/models/covey/config"),
        ("GET", "/v2/models/covey/stats"),
        ("GET", "/v2/systemsharedmemory/status"),
        ("GET", "/v2/trace/setting"),
        ("GET", "/v2/logging"),
    ],
)
def test_what_is_not_inference_or_health_wants_the_secret(running: Server, method: str, path: str) -> None:
    assert asked(running, method, path)[0] == 403
    if "unload" not in path:
        known = {"admin-key": tools.kept(running.options.http_port)}
        assert asked(running, method, path, **known)[0] == 200


@pytest.mark.e2e
def test_what_is_open_stays_open(running: Server) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2", "/v2/models/covey/ready", "/v2/models/covey"):
        assert asked(running, "GET", path)[0] == 200
    with Client(running.grpc_url) as client:
        assert client.generate("count 2").tokens == (0, 1)


@pytest.mark.e2e
def test_own_tools_need_no_settings_and_no_log_has_the_secret(
    running: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COVEY_ADMIN_SECRET", raising=False)
    where = ["--url", running.http_url, "--metrics-url", running.metrics_url.removesuffix("/metrics")]
    assert main(["status", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"] == [{"name": "covey", "state": "READY", "reason": ""}]
    monkeypatch.setenv("COVEY_ADMIN_SECRET", "another's")
    assert main(["status", *where]) == 0
    assert "set COVEY_ADMIN_SECRET" in " ".join(capsys.readouterr().out.split())
    secret = tools.kept(running.options.http_port)
    assert secret
    assert secret not in running.log_text()
    assert secret not in repr(running.options)


@pytest.mark.e2e
def test_the_environment_s_secret_is_the_server_s(canned_folder: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVEY_ADMIN_SECRET", "open sesame")
    with canned_folder().server("covey") as server:
        assert tools.kept(server.options.http_port) == ""
        assert status.read(server.http_url).models == (status.ModelStatus("covey", "READY"),)
        monkeypatch.delenv("COVEY_ADMIN_SECRET")
        assert status.read(server.http_url).models is None
        assert status.read(server.http_url, secret="open sesame").models is not None

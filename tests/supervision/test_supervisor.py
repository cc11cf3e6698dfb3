"""Who is ended and who is brought back, with processes that only look like a model's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest

from covey.supervision import processes, revival, rules, supervisor
from covey.supervision.control import FAILED, LOADING, READY, UNLOADED, Control, ControlError
from covey.supervision.deaths import Deaths, read
from covey.supervision.supervisor import Supervisor
from tests.supervision.model_control import SECONDS, SLEEP, Triton
from tests.waiting import until

ROLES = {"target": "target", "draft": "drafter", "tokenize": "tokenizer", "covey": "orchestrator"}
RELOAD = [("unload", "tokenize"), ("load", "tokenize")]
A_WHILE = 0.7  # in which something would have happened: twice what it takes


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[Triton]:
    made = Triton(*ROLES)
    monkeypatch.setattr(Control, "states", lambda _control: made.states())
    monkeypatch.setattr(Control, "load", lambda _control, model: made.load(model))
    monkeypatch.setattr(Control, "unload", lambda _control, model: made.unload(model))
    monkeypatch.setattr(Control, "answered", lambda _control, _model: 0)
    for module, name in ((revival, "FIRST_REST"), (supervisor, "LOOK_SECONDS")):
        monkeypatch.setattr(module, name, 0.02)
    monkeypatch.setattr(supervisor, "RELOAD_AFTER_SECONDS", 0.3)
    yield made
    made.hold.set()
    made.close()


@pytest.fixture
def cared(triton: Triton) -> Iterator[Supervisor]:
    made = Supervisor(Control("", 0), os.getpid(), ROLES)
    until_followed(made, triton)
    yield made
    made.stop(SECONDS)


def until_followed(cared: Supervisor, triton: Triton) -> None:
    def followed() -> bool:
        followed = {health.pid for health in list(cared._healths.values())}
        return {process.pid for model, process in triton.running.items() if triton.said[model] == READY} <= followed

    until(followed)


@pytest.fixture
def searching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are searched for at each look."""
    monkeypatch.setattr(supervisor, "FIND_SECONDS", 0.02)


def until_back(cared: Supervisor, triton: Triton) -> None:
    """Wait until a model has been loaded and is followed."""
    assert triton.loaded.acquire(timeout=SECONDS)
    until_followed(cared, triton)


@pytest.mark.parametrize("waits", [True, False], ids=["waited for", "a zombie stays"])
def test_what_dies_is_reloaded_each_time_and_once(triton: Triton, cared: Supervisor, waits: bool) -> None:
    triton.waits = waits
    for _ in range(2):
        triton.kill("tokenize")
        until_back(cared, triton)
    time.sleep(A_WHILE)
    assert triton.calls == 2 * RELOAD


def test_what_cannot_be_loaded_yet_is_tried_again(triton: Triton, cared: Supervisor) -> None:
    triton.failures = 2
    triton.kill("tokenize")
    until_back(cared, triton)
    assert triton.calls.count(("load", "tokenize")) == 3


@pytest.mark.usefixtures("cared")
def test_a_target_that_somebody_unloads_is_loaded(triton: Triton) -> None:
    """Other models stay away: `tests/e2e/test_revival.py` unloads one."""
    triton.unload("target")
    assert triton.loaded.acquire(timeout=SECONDS)


@pytest.mark.usefixtures("searching")
def test_what_failed_to_load_is_loaded_unless_its_loader_sees_to_it_soon(triton: Triton, cared: Supervisor) -> None:
    """Whoever had it loaded may have ended meanwhile."""
    triton.unload("draft")
    triton.said["draft"] = FAILED
    time.sleep(0.1)
    triton.said["draft"] = UNLOADED
    time.sleep(A_WHILE)
    assert ("load", "draft") not in triton.calls
    triton.said["draft"] = FAILED
    until_back(cared, triton)
    assert triton.calls.count(("unload", "draft")) == 1, "there is nothing to unload"


@pytest.mark.parametrize("model", ["tokenize", "covey"])
def test_what_had_died_before_it_was_looked_for_is_reloaded_too(triton: Triton, model: str) -> None:
    triton.kill(model)
    triton.running[model].wait()
    told: list[bool] = []
    cared = Supervisor(Control("", 0), os.getpid(), ROLES, died=told.append)
    until_back(cared, triton)
    cared.stop(SECONDS)
    assert triton.calls == [("unload", model), ("load", model)]
    assert told == [False] * (model == "covey")


def test_what_somebody_else_has_loaded_between_two_tries_is_left_alone(
    triton: Triton, cared: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revival, "FIRST_REST", 0.3)
    triton.failures = 1
    triton.kill("draft")
    until(lambda: triton.said["draft"] == FAILED)
    triton.load("draft")
    until(lambda: not cared._revival.sees_to("draft"))
    time.sleep(A_WHILE)
    assert triton.calls == [("unload", "draft"), ("load", "draft"), ("load", "draft")]


def test_what_somebody_else_loads_is_not_loaded_beside_that(triton: Triton) -> None:
    made = revival.Revival(Control("", 0), lambda _model: False)
    triton.said["draft"] = LOADING
    made.begin("draft")
    time.sleep(0.2)
    triton.said["draft"] = READY
    until(lambda: not made.sees_to("draft"))
    assert not triton.calls


def test_whose_zombie_stays_is_not_reloaded_for_it_when_somebody_has_loaded_it_again(
    triton: Triton, cared: Supervisor
) -> None:
    triton.waits = False
    triton.unload("draft")
    triton.kill("draft")
    until(lambda: cared._last["draft"])
    triton.load("draft")
    until_followed(cared, triton)
    time.sleep(A_WHILE)
    assert triton.calls == [("unload", "draft"), ("load", "draft")]


def test_what_is_unloaded_while_processes_are_searched_for_has_not_died(
    triton: Triton, cared: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(cared._settled)
    found = processes.by_model

    def by_model(server: int) -> dict[str, list[int]]:
        living = found(server)
        if not living.get("draft"):
            triton.said["draft"] = UNLOADED
        return living

    monkeypatch.setattr(processes, "by_model", by_model)
    triton.kill("draft")
    triton.running["draft"].wait()
    until(lambda: triton.said["draft"] == UNLOADED)
    time.sleep(A_WHILE)
    assert not triton.calls


def test_nothing_is_brought_back_after_the_stop_and_a_reload_is_waited_for(triton: Triton, cared: Supervisor) -> None:
    triton.hold.clear()
    triton.kill("draft")
    assert triton.began.acquire(timeout=SECONDS)
    began = time.monotonic()
    extra = Supervisor(Control("", 0), os.getpid(), {})
    extra.stop(SECONDS)
    cared._revival.stop(0.2)
    assert 0.2 <= time.monotonic() - began < SECONDS
    triton.hold.set()
    triton.kill("tokenize")
    time.sleep(A_WHILE)
    assert ("load", "tokenize") not in triton.calls


def test_while_it_drains_only_who_is_needed_for_what_runs_comes_back(triton: Triton, cared: Supervisor) -> None:
    cared.drain()
    for model in ROLES:
        triton.kill(model)
    for _ in range(2):
        assert triton.loaded.acquire(timeout=SECONDS)
    time.sleep(A_WHILE)
    assert {model for call, model in triton.calls if call == "load"} == {"target", "draft"}


@pytest.mark.usefixtures("cared")
def test_a_look_that_fails_of_anything_is_not_the_last(triton: Triton, monkeypatch: pytest.MonkeyPatch) -> None:
    problems: list[Exception] = [OSError(24, "Too many open files"), ValueError("Expecting value"), ControlError("-")]
    found = processes.by_model
    monkeypatch.setattr(processes, "by_model", lambda server: raised(problems.pop()) if problems else found(server))
    triton.kill("tokenize")
    assert triton.loaded.acquire(timeout=SECONDS)
    assert not problems


def raised(error: Exception) -> NoReturn:
    raise error


def test_a_death_of_the_public_model_is_told_once_and_when_it_happened(triton: Triton) -> None:
    """The front gives up streams from before it. Other models' deaths are not told."""
    deaths = Deaths()
    deaths.serving(True)
    cared = Supervisor(Control("", 0), os.getpid(), ROLES, died=deaths.note)
    until_followed(cared, triton)
    before = time.monotonic()
    for model in ("tokenize", "covey"):
        triton.kill(model)
        until_back(cared, triton)
    seen = read(deaths.fd)
    assert (seen.deaths, seen.serving) == (1, True)
    assert before < seen.last < time.monotonic()
    cared.stop(SECONDS)


@pytest.fixture
def server() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", SLEEP]) as process:
        yield process
        process.kill()


def test_a_server_that_takes_its_models_along_died_once(triton: Triton, server: subprocess.Popen[bytes]) -> None:
    deaths = Deaths()
    deaths.serving(True)
    cared = Supervisor(Control("", 0), server.pid, {}, died=deaths.note)
    cared._follow("covey", triton.running["covey"].pid)
    server.kill()
    server.wait()
    triton.kill("covey")
    until(lambda: not cared._healths)
    seen = read(deaths.fd)
    assert (seen.deaths, seen.serving) == (1, False)
    cared.stop(SECONDS)
    assert ("load", "covey") not in triton.calls


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's children are the models' of any server."""
    found = processes.by_model
    monkeypatch.setattr(processes, "by_model", lambda _server: found(os.getpid()))


def starting(server: subprocess.Popen[bytes], states: Callable[[], dict[str, str]]) -> Supervisor:
    """Of a server that has not answered yet."""
    return Supervisor(Control("", 0), server.pid, ROLES, starting=states)


@pytest.mark.usefixtures("elsewhere")
def test_who_is_paused_while_the_server_starts_is_ended(
    triton: Triton, server: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "PAUSED_SECONDS", 0.1)
    cared = starting(server, lambda: dict.fromkeys(ROLES, LOADING))
    for process in (triton.running["draft"], server):
        process.send_signal(signal.SIGSTOP)
        assert process.wait(SECONDS) == -signal.SIGKILL
    cared.stop(SECONDS)
    assert cared.killed == ["draft", processes.SERVER]
    assert not triton.calls, "the launcher starts all of it again"


def until_decided(cared: Supervisor, triton: Triton, server: subprocess.Popen[bytes], ended: bool) -> None:
    """A server that is to end is killed, and another goes on."""
    if ended:
        assert server.wait(SECONDS) == -signal.SIGKILL
    else:
        time.sleep(A_WHILE)
        assert server.poll() is None
    triton.hold.set()
    cared.stop(SECONDS)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("state", "ended"), [(LOADING, True), (READY, False)])
def test_a_death_that_triton_overlooks_ends_a_server_that_starts(
    triton: Triton, server: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, state: str, ended: bool
) -> None:
    monkeypatch.setattr(supervisor, "LOST_SECONDS", 0.3)
    cared = starting(server, lambda: dict.fromkeys(ROLES, state))
    until_followed(cared, triton)
    triton.kill("draft")
    triton.running["draft"].wait()
    until_decided(cared, triton, server, ended)
    assert not triton.calls


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(("state", "ended"), [(LOADING, True), ("", False)], ids=["begun", "waits for its turn"])
def test_a_model_that_never_had_a_process_ends_a_server_that_has_begun_to_load_it(
    triton: Triton, server: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, state: str, ended: bool
) -> None:
    for name in ("LOST_SECONDS", "UNSEEN_SECONDS"):
        monkeypatch.setattr(supervisor, name, 0.3)
    triton.kill("draft")
    triton.running["draft"].wait()
    cared = starting(server, lambda: dict.fromkeys(ROLES, LOADING) | {"draft": state})
    until_decided(cared, triton, server, ended)


def beside(triton: Triton, server: subprocess.Popen[bytes]) -> Supervisor:
    """Of a server that has started."""
    cared = Supervisor(Control("", 0), server.pid, ROLES)
    until_followed(cared, triton)
    return cared


@pytest.mark.usefixtures("elsewhere", "searching")
def test_the_time_that_a_model_was_away_is_none_of_its_load(
    triton: Triton, server: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process begins a little later than Triton says that it loads the model."""
    monkeypatch.setattr(supervisor, "UNSEEN_SECONDS", A_WHILE)
    cared = beside(triton, server)
    triton.unload("tokenize")
    time.sleep(1.5 * A_WHILE)
    triton.said["tokenize"] = LOADING
    time.sleep(0.3 * A_WHILE)
    assert server.poll() is None
    assert server.wait(SECONDS) == -signal.SIGKILL, "it is waited for, but not for ever"
    cared.stop(SECONDS)


@pytest.mark.usefixtures("elsewhere", "searching")
@pytest.mark.parametrize(("model", "ended"), [("tokenize", True), ("draft", False)])
def test_a_death_that_triton_overlooks_in_a_reload_ends_the_server_but_for_a_drafter(
    triton: Triton, server: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, model: str, ended: bool
) -> None:
    """Whoever reloads it waits for ever."""
    monkeypatch.setattr(supervisor, "LOST_SECONDS", 0.3)
    cared = beside(triton, server)
    triton.hold.clear()
    triton.notices = False
    triton.kill(model)
    assert triton.began.acquire(timeout=SECONDS)
    until(lambda: model in cared._seen)
    triton.kill(model)
    until_decided(cared, triton, server, ended)


@pytest.mark.usefixtures("elsewhere", "searching")
def test_a_reload_that_waits_for_its_turn_is_not_one_whose_process_was_lost(
    triton: Triton, server: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of models that are reloaded at once Triton begins a few."""
    for name in ("LOST_SECONDS", "UNSEEN_SECONDS"):
        monkeypatch.setattr(supervisor, name, 0.3)
    cared = beside(triton, server)

    def waits(_control: Control, model: str) -> None:
        triton.said[model] = LOADING
        assert triton.hold.wait(SECONDS)
        triton.load(model)

    monkeypatch.setattr(Control, "load", waits)
    triton.hold.clear()
    triton.kill("tokenize")
    until(lambda: triton.said["tokenize"] == LOADING)
    until_decided(cared, triton, server, ended=False)
    assert triton.loaded.acquire(timeout=SECONDS)

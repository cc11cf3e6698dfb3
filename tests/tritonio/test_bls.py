"""Messages between models: refused when forged, sent again when an answer is lost, done once all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from covey.contracts.errors import PortError, StubDead
from covey.contracts.types import (
    DraftWork,
    Ints,
    Open,
    Resized,
    ResizeStatus,
    RowStatus,
    Sampling,
    TargetReply,
    TargetWork,
    Trees,
)
from covey.emulated.devices import EmulatedDrafter, EmulatedTarget
from covey.emulated.hash_model import HashModel
from covey.supervision.calls import (
    DRAFTERS_SECONDS,
    GRAMMAR_SECONDS,
    KNOWN_CALLS,
    LOOK_SECONDS,
    QUESTION_SECONDS,
    Calls,
)
from covey.wire import codec
from covey.wire.token import VARIABLE
from covey_client.costs.table import CostTable
from loadtest.simulation.virtual import VirtualClock
from tests.arrays import ints
from tests.tritonio import adapters

Transport = Callable[[Callable[[], Any]], Any]


class Triton:
    """Stands in for Triton between two models of one process: `transport` may lose what it carries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        steps = ((1, 1, 0.001), (64, 64, 0.001))
        costs = CostTable("made up", "for tests", steps, (), {"draft": steps}, {"draft": steps})
        self.target = target = EmulatedTarget(costs, HashModel(97), VirtualClock(), blocks=40)
        drafter = EmulatedDrafter(costs, HashModel(97), VirtualClock(), name="draft", rates={})
        self.models: dict[str, Callable[[Ints], Ints]] = {
            "target": lambda message: codec.encode(target.step(codec.decode_target_work(message))),
            "draft": lambda message: codec.encode(drafter.draft(codec.decode_draft_work(message))),
        }
        self.transport: Transport = lambda exchange: exchange()
        self.sent, self.logged = 0, list[str]()
        self.module, fake = adapters.load(monkeypatch, "target")
        fake.Tensor = lambda name, array: SimpleNamespace(name=name, as_numpy=lambda: array)
        fake.InferenceRequest, fake.InferenceResponse = self._request, response
        fake.TritonError = lambda text: SimpleNamespace(message=lambda: text)
        fake.get_input_tensor_by_name = fake.get_output_tensor_by_name = named
        fake.Logger.log_error = self.logged.append
        from covey.tritonio import bls

        self.bls = bls

    def _request(self, *, model_name: str, inputs: list[Any], **_rest: Any) -> Any:
        def execute() -> Any:
            self.sent += 1
            return self.transport(lambda: self.serve(model_name, inputs))

        return SimpleNamespace(exec=execute)

    def serve(self, model: str, inputs: list[Any]) -> Any:
        return self.bls.serve([SimpleNamespace(tensors=inputs)], self.models[model])[0]


def named(holder: Any, name: str) -> Any:
    return next(each for each in holder.tensors if each.name == name)


def response(tensors: Any = (), error: Any = None) -> Any:
    return SimpleNamespace(tensors=tensors, has_error=lambda: error is not None, error=lambda: error)


def refusal(text: str) -> Any:
    return response(error=SimpleNamespace(message=lambda: text))


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Triton:
    monkeypatch.setenv(VARIABLE, "7fffffffffffffff")
    return Triton(monkeypatch)


OPENS = (Open(1, ints(4, 5, 6), 3, Sampling()),)
DRAFT = DraftWork(ints(1), ints(3), ints(0, 0), ints(), ints(2), ints(1), ints(0), opens=OPENS, sequence=1, origin=5)


def opening(sequence: int = 1) -> TargetWork:
    return TargetWork(ints(1), ints(3), ints(3), Trees.empty(1), OPENS, sequence=sequence, origin=5)


def decode(known: int, sequence: int) -> TargetWork:
    return TargetWork(ints(1), ints(known), ints(1), Trees.empty(1), sequence=sequence, origin=5)


def step(triton: Triton, work: TargetWork) -> TargetReply:
    return triton.bls.BlsTarget("target", Calls(print, lambda _model: [])).step(work)


def answer(triton: Triton, message: Ints) -> Any:
    return triton.serve("target", [SimpleNamespace(name=codec.REQUEST_TENSOR, as_numpy=lambda: message)])


@pytest.mark.parametrize("token", [0, 1, (1 << 63) - 2])
def test_a_message_without_the_servers_token_is_refused_and_changes_nothing(triton: Triton, token: int) -> None:
    step(triton, opening())
    forged = codec.encode(TargetWork(ints(), ints(), ints(), Trees.empty(0), frees=(1,), sequence=2))
    codec.seal(forged, token)
    found = answer(triton, forged)
    assert found.has_error()
    for text in (found.error().message(), *triton.logged):
        assert "not of this server" in text
        assert not any(secret in text for secret in ("7fffffffffffffff", str((1 << 63) - 1), VARIABLE))
    assert step(triton, decode(4, 2)).status.tolist() == [RowStatus.OK]


def test_short_and_old_messages_are_refused(triton: Triton) -> None:
    for message in (ints(), ints(5, 3), ints(4, 3, 0, 0, 0)):
        assert "version" in answer(triton, message).error().message()


def test_replies_carry_no_token(triton: Triton) -> None:
    sealed = codec.encode(opening())
    codec.seal(sealed, (1 << 63) - 1)
    reply = answer(triton, sealed).tensors[0].as_numpy()
    codec.authenticate(reply, 0)


def lost_once(kind: str) -> Transport:
    """Serves the first message, and loses its answer."""
    left = [kind]

    def transport(exchange: Callable[[], Any]) -> Any:
        answered = exchange()
        if left:
            if left.pop() == "raised":
                raise MemoryError("shared memory is full")
            return refusal("shared memory is full")
        return answered

    return transport


@pytest.mark.parametrize("kind", ["raised", "answered"])
def test_an_answer_that_was_lost_is_had_by_asking_again(triton: Triton, kind: str) -> None:
    step(triton, opening())
    triton.transport = lost_once(kind)
    reply = step(triton, decode(4, 2))
    assert triton.sent == 3
    assert reply.status.tolist() == [RowStatus.OK], "made twice, the row would have moved on and be stale"
    assert len(reply.tokens) == 1
    assert step(triton, decode(5, 3)).status.tolist() == [RowStatus.OK]


def test_a_drafters_answer_too(triton: Triton) -> None:
    triton.transport = lost_once("answered")
    reply = triton.bls.BlsDrafter("draft", Calls(print, lambda _model: [])).draft(DRAFT)
    assert reply.status.tolist() == [RowStatus.OK]
    assert len(reply.trees.tokens) == 2
    assert triton.sent == 2


def test_work_that_fails_is_not_done_twice_and_says_why(triton: Triton, monkeypatch: pytest.MonkeyPatch) -> None:
    step(triton, opening())
    done = []

    def broken(*_values: object) -> None:
        done.append(1)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(triton.target, "_row", broken)
    with pytest.raises(PortError, match="target: RuntimeError: out of memory"):
        step(triton, decode(4, 2))
    assert len(done) == 1
    assert triton.sent == 3


def test_a_dead_process_is_not_asked_again(triton: Triton) -> None:
    triton.transport = lambda _exchange: refusal("Stub process 'target_0_0' is not healthy.")
    with pytest.raises(StubDead):
        step(triton, opening())
    assert triton.sent == 1


def test_a_wish_for_another_pool_reaches_the_target_and_its_refusal_comes_back(
    triton: Triton, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = triton.bls.BlsTarget("target", Calls(print, lambda _model: []))
    model = triton.module.TritonPythonModel()
    model._runner = triton.target
    monkeypatch.setitem(triton.models, "target", model._answer)
    assert sent.resize(10) == Resized(ResizeStatus.NOT_HERE, 40)
    assert sent.info().total_blocks == 40
    assert sent.step(opening()).total_blocks == 40
    with pytest.raises(PortError, match="a pool of 0 blocks"):
        sent.resize(0)


PROCESS = 2**22  # that there is not


class Watched:
    """Calls that are looked at, and which processes were ended for them."""

    def __init__(self, triton: Triton, kind: str, model: str) -> None:
        self.ended: list[int] = []
        self._calls = Calls(self.ended.extend, lambda _model: {PROCESS: 1e9})
        self._triton, self.port = triton, getattr(triton.bls, kind)(model, self._calls)

    def hangs(self, seconds: float, ask: str, given: Any) -> list[int]:
        """Which processes have been ended when a call has taken so long."""

        def hangs(_exchange: Callable[[], Any]) -> Any:
            for _ in range(round(seconds / LOOK_SECONDS)):
                self._calls.look()
            return refusal("Stub process is not healthy.")

        self._triton.transport = hangs
        with pytest.raises(StubDead):
            getattr(self.port, ask)(given)
        return self.ended


@pytest.mark.parametrize(("kind", "ask", "given"), [("BlsTarget", "resize", 10), ("BlsDrafter", "draft", DRAFT)])
def test_a_model_that_answers_neither_a_wish_for_another_pool_nor_its_first_draft_is_ended(
    triton: Triton, kind: str, ask: str, given: Any
) -> None:
    seconds = max(QUESTION_SECONDS, DRAFTERS_SECONDS) + LOOK_SECONDS
    assert Watched(triton, kind, "draft").hangs(seconds, ask, given) == [PROCESS]


@pytest.mark.parametrize(("kind", "ask", "work"), [("BlsTarget", "step", opening()), ("BlsDrafter", "draft", DRAFT)])
def test_who_may_have_to_read_a_tokenizer_for_a_grammar_has_longer(
    triton: Triton, kind: str, ask: str, work: Any
) -> None:
    """Of a large vocabulary that takes longer than a pass may where passes are quick."""
    watched = Watched(triton, kind, "draft" if ask == "draft" else "target")
    for sequence in range(KNOWN_CALLS):
        getattr(watched.port, ask)(replace(work, sequence=sequence))
    for grammar, ends in (("{}", []), ("", [PROCESS])):
        opens = (replace(OPENS[0], sampling=Sampling(grammar=grammar)),)
        assert watched.hangs(GRAMMAR_SECONDS, ask, replace(work, opens=opens)) == ends


def test_a_long_context_is_not_judged_by_how_long_short_ones_took(triton: Triton) -> None:
    """As many tokens take far longer behind 30,000 others: of that nothing is known."""
    watched = Watched(triton, "BlsTarget", "target")
    for sequence in range(KNOWN_CALLS):
        watched.port.step(decode(4, sequence))
    for known, ends in ((30_000, []), (4, [PROCESS])):
        assert watched.hangs(GRAMMAR_SECONDS, "step", decode(known, KNOWN_CALLS)) == ends

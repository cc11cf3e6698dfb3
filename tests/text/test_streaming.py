from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from covey.contracts.clock import RealClock
from covey.contracts.errors import CoveyError, PortError
from covey.contracts.types import Finish, Progress, Request, Sampling, Scores, Top
from covey.text.streaming import Cancelled, Chunk, Served, Streamer
from tests.waiting import until

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """One token per byte."""
    made = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(ALPHABET)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


class Listener:
    """An outlet that keeps what it gets."""

    streams = True

    def __init__(self, *, needs_state: bool = False, broken: bool = False, raises: str = "") -> None:
        self.needs_state = needs_state
        self.broken = broken
        self.raises = raises  # the calls that fail as no outlet should
        self.chunks: list[Chunk] = []
        self.error: Exception | None = None
        self.left = False
        self.done = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Semaphore(0)  # once a chunk that is on its way

    def send(self, chunk: Chunk) -> None:
        self.asked.release()
        self.gate.wait(60)
        if self.broken:
            raise PortError("nobody listens")
        self._raise("send")
        assert not self.done.is_set(), "a chunk after the last"
        self.chunks.append(chunk)
        if chunk.finish is not None:
            self.done.set()

    def has(self, text: str) -> bool:
        """Whether it gets this and nothing else, within a minute."""
        return until(lambda: "".join(chunk.text for chunk in self.chunks) == text, lambda: self.chunks)

    def _raise(self, call: str) -> None:
        if call in self.raises:
            raise MemoryError("shared memory is full")

    def fail(self, error: Exception) -> None:
        self._raise("fail")
        self.error = error
        self.done.set()

    def gone(self) -> bool:
        self._raise("gone")
        return self.left


class Cancels:
    """The engine as the streamer sees it."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, Finish]] = []
        self.called = threading.Event()

    def cancel(self, key: int, finish: Finish = Finish.CANCELLED) -> None:
        self.calls.append((key, finish))
        self.called.set()


def request(key: int, ids: np.ndarray, **sampling: int) -> Request:  # type: ignore[type-arg]
    return Request(key, ids, 100, Sampling(**sampling), len(ids), arrival=time.perf_counter())


class Bench:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.served: list[Served] = []
        self.engine = Cancels()
        self.streamer = Streamer(tokenizer, RealClock(), served=self.served.append)
        self.streamer.start(self.engine)

    def ids(self, text: str) -> np.ndarray:  # type: ignore[type-arg]
        return np.asarray(self.tokenizer.encode(text).ids, np.int32)

    def begin(self, key: int, listener: Listener, *, stream: bool = True, stop: tuple[str, ...] = ()) -> None:
        asked = request(key, self.ids("Hi "), seed=9, logprobs=True)
        self.streamer.begin(asked, listener, stream=stream, stop_words=stop)

    def say(self, key: int, text: str, finish: Finish | None = None, error: Exception | None = None) -> None:
        ids = self.ids(text)
        self.streamer.publish(
            [
                Progress(
                    *(key, ids, np.zeros(len(ids), np.float32), finish, error, 8, 6),
                    acceptance=(1, 0, 3),
                    drafters=(("b", 8, 6),),
                    top=Top(np.stack([ids, ids + 1], 1), np.zeros((len(ids), 2), np.float32)),
                )
            ]
        )


@pytest.fixture
def bench(tokenizer: Tokenizer):  # type: ignore[no-untyped-def]
    made = Bench(tokenizer)
    yield made
    made.streamer.stop()


def test_a_stream_and_a_single_answer_carry_the_same(bench: Bench) -> None:
    one, two = Listener(), Listener()
    bench.begin(1, one)
    bench.begin(2, two, stream=False)
    for key in (1, 2):
        bench.say(key, "naïve ")
        bench.say(key, "début", Finish.LENGTH)
    assert one.done.wait(60)
    assert two.done.wait(60)
    assert "".join(chunk.text for chunk in one.chunks) == "naïve début"
    assert [chunk.text for chunk in two.chunks] == ["naïve début"]
    last = two.chunks[0]
    assert (last.num_input, last.num_output, last.drafted, last.accepted, last.seed) == (3, 13, 8, 6, 9)
    assert last.acceptance == (1, 0, 3)
    assert last.drafters == (("b", 8, 6),)
    assert len(last.logprobs) == 13
    assert last.top.ids.tolist() == [[token, token + 1] for token in last.ids.tolist()]
    assert np.concatenate([chunk.top.ids for chunk in one.chunks]).tolist() == last.top.ids.tolist()
    assert last.top.logprobs.shape == (13, 2)
    assert bench.streamer.open == 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_s_scores_come_with_the_first_response(bench: Bench, stream: bool) -> None:
    slow, ids = Listener(), bench.ids("Hi ")
    slow.gate.clear()
    bench.begin(1, busy := Listener())
    bench.streamer.begin(Request(2, ids, 8, Sampling(prompt_logprobs=True), 2), slow, stream=stream)
    top = Top(np.array([[5, 6]], np.int32), np.zeros((1, 2), np.float32))
    first, second = (Progress(2, ids[:1], np.zeros(1, np.float32)) for _ in range(2))
    bench.streamer.publish([first._replace(scores=Scores(np.float32([-0.5]), top)), second])  # both at once
    bench.say(1, "a", Finish.LENGTH)
    assert slow.asked.acquire(timeout=60) if stream else busy.done.wait(60)
    slow.gate.set()
    bench.say(2, "b", Finish.LENGTH)
    assert slow.done.wait(60)
    begin, *others = slow.chunks
    assert begin.prompt_ids.tolist() == ids[:2].tolist()
    scores = begin.prompt_scores
    assert (scores.logprobs.tolist(), scores.top.ids.tolist()) == ([-0.5], [[5, 6]])
    assert not any(len(chunk.prompt_ids) + len(chunk.prompt_scores.logprobs) for chunk in others)
    assert len(others) == int(stream)


def test_what_piles_up_is_sent_as_one(bench: Bench) -> None:
    slow = Listener()
    slow.gate.clear()
    bench.begin(1, slow)
    bench.say(1, "a")
    assert slow.asked.acquire(timeout=60)
    for letter in "bcdefg":
        bench.say(1, letter)
    bench.say(1, "h", Finish.EOS)
    slow.gate.set()
    assert slow.done.wait(60)
    assert [chunk.text for chunk in slow.chunks] == ["a", "bcdefgh"]


def test_a_stop_word_ends_the_answer_at_once_and_tells_the_engine(bench: Bench) -> None:
    listener = Listener()
    bench.begin(1, listener, stop=("STOP",))
    bench.say(1, "one ST")
    bench.say(1, "OP two")
    bench.say(1, " three")
    assert listener.done.wait(60)
    assert "".join(chunk.text for chunk in listener.chunks) == "one "
    assert listener.chunks[-1].finish is Finish.STOP
    assert listener.chunks[-1].num_output == len("one STOP")
    assert bench.engine.calls == [(1, Finish.STOP)]


def test_a_client_that_left_is_noticed_and_one_that_broke_too(bench: Bench) -> None:
    left, broken = Listener(), Listener(broken=True)
    bench.begin(1, left)
    left.left = True
    assert bench.engine.called.wait(60)
    assert bench.engine.calls[0] == (1, Finish.CANCELLED)
    bench.say(1, "", Finish.CANCELLED)
    assert left.done.wait(60)
    assert isinstance(left.error, Cancelled)
    bench.engine.calls.clear()
    bench.engine.called.clear()
    bench.begin(2, broken)
    bench.say(2, "x")
    assert bench.engine.called.wait(60)
    assert bench.engine.calls[0][0] == 2


def test_errors_reach_the_client_and_everyone_when_the_engine_dies(bench: Bench) -> None:
    one, two = Listener(), Listener()
    bench.begin(1, one)
    bench.begin(2, two, stream=False)
    bench.say(1, "", Finish.ERROR, CoveyError("no room"))
    assert one.done.wait(60)
    assert str(one.error) == "no room"
    bench.streamer.fail_all(PortError("dead"))
    assert two.done.wait(60)
    assert str(two.error) == "dead"
    assert {served.finish for served in bench.served} == {Finish.ERROR}


def test_state_for_a_detokeniser_elsewhere(bench: Bench) -> None:
    listener = Listener(needs_state=True)
    bench.begin(1, listener)
    bench.say(1, "ab")
    assert listener.asked.acquire(timeout=60)
    bench.say(1, "c", Finish.EOS)
    assert listener.done.wait(60)
    states = [chunk.state for chunk in listener.chunks]
    assert all(state is not None for state in states)
    assert [len(state.before) for state in states if state] == [0, 2]
    assert states[-1] is not None
    assert states[-1].final


def test_times_are_measured(bench: Bench) -> None:
    listener = Listener()
    bench.begin(1, listener)
    bench.say(1, "a")
    assert listener.asked.acquire(timeout=60)
    time.sleep(0.03)
    bench.say(1, "b", Finish.EOS)
    assert listener.done.wait(60)
    bench.streamer.stop()  # what it has to say of the answer comes after its last words
    served = bench.served[0]
    assert served.first_token is not None
    assert served.per_token is not None
    assert 0 <= served.first_token <= served.total
    assert served.per_token >= 0.02


def test_clients_are_asked_only_a_few_times_a_second(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question is a way to tritonserver and back."""
    there, asked = Listener(), list[float]()
    monkeypatch.setattr(there, "gone", lambda: bool(asked.append(time.perf_counter())))
    bench.begin(1, there)
    time.sleep(1.0)
    assert 1 <= len(asked) <= 5


@pytest.mark.parametrize("raises", ["send", "send fail", "gone"])
@pytest.mark.parametrize("stream", [True, False])
def test_an_outlet_that_fails_ends_its_own_answer_alone(
    bench: Bench, raises: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    unlucky, other = Listener(raises=raises), Listener()
    bench.begin(1, unlucky, stream=stream)
    bench.begin(2, other)
    for key in (1, 2):
        bench.say(key, "a")
    bench.say(1, "b", Finish.LENGTH)
    assert unlucky.done.wait(0.3 if "fail" in raises else 60) != ("fail" in raises)
    bench.say(2, "b", Finish.EOS)
    assert other.done.wait(60)
    assert "".join(chunk.text for chunk in other.chunks) == "ab"
    assert bench.streamer.open == 0
    if raises != "gone":
        assert "MemoryError" in caplog.text
        assert bench.engine.calls == [(1, Finish.CANCELLED)]
    if raises == "send":
        assert str(unlucky.error) == "the answer could not be sent: MemoryError: shared memory is full"


def test_of_many_answers_each_is_sent_less_often(tokenizer: Tokenizer) -> None:
    """First words and last ones do not wait, and what is held is sent though nothing comes any more."""
    streamer, listeners = Streamer(tokenizer, RealClock(), apart=0.25), [Listener() for _ in range(4)]
    streamer.start(Cancels())

    def say(text: str, finish: Finish | None = None) -> None:
        ids = np.asarray(tokenizer.encode(text).ids, np.int32)
        streamer.publish([Progress(key, ids, np.zeros(0, np.float32), finish) for key in range(4)])

    for key, listener in enumerate(listeners):
        streamer.begin(request(key, np.zeros(1, np.int32)), listener, stream=True)
    say("one")
    assert all(listener.has("one") for listener in listeners)
    begun = time.monotonic()
    say(" two")
    say(" three")
    assert all(listener.has("one two three") for listener in listeners)
    assert time.monotonic() - begun > 0.5
    say(" four", Finish.LENGTH)
    assert all(listener.done.wait(60) for listener in listeners)
    assert time.monotonic() - begun < 1.5
    streamer.stop()
    said = [[chunk.text for chunk in listener.chunks] for listener in listeners]
    assert said == [["one", " two three", " four"]] * 4


def test_first_words_go_before_others(tokenizer: Tokenizer) -> None:
    order: list[int] = []

    class Slow(Listener):
        def __init__(self, key: int) -> None:
            super().__init__()
            self.key = key

        def send(self, chunk: Chunk) -> None:
            order.append(self.key)
            time.sleep(0.02)
            super().send(chunk)

    streamer, listeners = Streamer(tokenizer, RealClock()), [Slow(key) for key in range(20)]
    streamer.start(Cancels())
    ids, none = np.asarray(tokenizer.encode("word").ids, np.int32), np.zeros(0, np.float32)
    for key in range(19):
        streamer.begin(request(key, ids), listeners[key], stream=True)
    streamer.publish([Progress(key, ids, none, None) for key in range(19)])
    assert all(listener.has("word") for listener in listeners[:19])
    streamer.publish([Progress(key, ids, none, None) for key in range(19)])
    streamer.begin(request(19, ids), listeners[19], stream=True)
    streamer.publish([Progress(19, ids, none, None)])
    assert listeners[19].has("word")
    assert len(order) < 19 + 10, "the others' second words"
    streamer.fail_all(PortError("over"))
    streamer.stop()

"""A drafter elsewhere: lost answers, places that go and come back, several places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from covey.contracts.errors import PortError, PortTimeout, SettingError
from covey.contracts.profile import DrafterSettings, Profile, SpeculationSettings, StarSettings
from covey.contracts.types import Ints, RowStatus
from covey.drafters import load_drafter
from covey.drafters.ngram import NgramDrafter
from covey.drafters.service import DraftService
from covey.star.callers import Authenticator, CallingServer, token_of
from covey.star.remote import MOST_SURPLUS, SHARE, RemoteDrafter
from covey.tritonio.grpc import Unreachable
from covey.wire import codec
from covey.wire.ledger import new_origin
from tests.drafters.drafting import Sender, Text, rows_of
from tests.fakes import ManualClock
from tests.waiting import until

SECRET = "secret-of-the-east-server"
VOCABULARY = 97
CALLERS = MappingProxyType({"east": SECRET})
Remote = Callable[..., RemoteDrafter]


class There:
    """A drafters' server as `exchange` reaches it, and what goes wrong on the way."""

    def __init__(
        self, name: str = "there:1/draft", vocab_size: int = VOCABULARY, callers: Mapping[str, str] = CALLERS
    ) -> None:
        self.name = name
        self.auth = Authenticator(1, [CallingServer(caller, token_of(secret)) for caller, secret in callers.items()])
        self.vocab_size = vocab_size
        self.lose_answers = self.lose_messages = 0
        self.gone = False
        self.asked: list[int] = []  # kinds of messages
        self.freed: list[int] = []
        self.clock = ManualClock()
        self.slow = 0.0
        self.start()

    def start(self) -> None:
        """Anew: it knows nothing."""
        self.drafter = NgramDrafter(DrafterSettings(), name="draft", vocab_size=self.vocab_size)
        self.service = DraftService(self.drafter)
        self.gone = False

    def exchange(self, message: Ints, _seconds: float) -> Ints:
        self.asked.append(codec.kind_of(message))
        if self.gone:
            raise Unreachable("connection refused")
        caller = self.auth.caller(message)
        self.clock.sleep(self.slow)
        if codec.kind_of(message) == codec.INFO_REQUEST.kind:
            return codec.encode(self.service.info())
        if self.lose_messages:
            self.lose_messages -= 1
            raise Unreachable("reset")
        work = codec.decode_draft_work(message)
        self.freed += work.frees
        reply = self.service.draft(replace(work, origin=self.auth.origin(caller, work.origin)), caller)
        if self.lose_answers:
            self.lose_answers -= 1
            raise Unreachable("reset")
        return codec.encode(reply)

    @property
    def drafts(self) -> int:
        return self.asked.count(codec.DRAFT_WORK.kind)


@pytest.fixture
def remote() -> Iterator[Remote]:
    made: list[RemoteDrafter] = []

    def make(*places: There, **given: Any) -> RemoteDrafter:
        settings = {"name": "draft_remote", "vocab_size": VOCABULARY, "deadline": 60.0} | given
        made.append(RemoteDrafter(places, token_of(SECRET), **settings))
        return made[-1]

    yield make
    for drafter in made:
        drafter.close()


def up(drafter: RemoteDrafter) -> None:
    until(lambda: not any(place.down for place in drafter._places))


def texts() -> list[Text]:
    return [Text(1, [5, 6, 7, 5, 6]), Text(2, [9, 8, 9])]


def begun(drafter: RemoteDrafter) -> tuple[RemoteDrafter, Sender, list[Text]]:
    """A drafter all of whose places are up, and who sends it what."""
    up(drafter)
    return drafter, Sender(drafter, new_origin("a")), texts()


def test_an_answer_that_is_lost_is_asked_for_again_and_nothing_is_drafted_twice(remote: Remote) -> None:
    there = There()
    _, sender, mine = begun(remote(there))
    sender.send(mine, 3)
    calls = len(there.asked)
    there.lose_answers = 1
    mine[0].tokens.append(7)
    reply = sender.send(mine, 3)
    assert reply.seen.tolist() == [6, 3]
    assert rows_of(reply.trees)[0] == [5, 6, 7]
    assert len(there.asked) == calls + 2
    there.lose_messages = 1
    assert rows_of(sender.send(mine, 3).trees) == rows_of(reply.trees)


def test_while_it_is_gone_rows_decode_plainly_at_once_and_it_comes_back_by_itself(remote: Remote) -> None:
    there = There()
    drafter, sender, mine = begun(remote(there))
    sender.send(mine, 3)
    there.gone = True
    with pytest.raises(PortError):
        sender.send(mine, 3)  # what became of this one nobody knows
    drafts = there.drafts
    mine[0].tokens.append(7)
    for _ in range(20):
        reply = drafter.draft(sender.work(mine, 3, frees=[77]))
        assert reply.status.tolist() == [RowStatus.SKIPPED] * 2
        assert reply.again_seconds > 0
        assert reply.seen.tolist() == [5, 3], "what it held before"
    assert there.drafts == drafts, "no draft waits for it"
    there.start()
    up(drafter)
    reply = sender.send(mine, 3)
    assert reply.status.tolist() == [RowStatus.STALE] * 2, "started anew, it knows nothing"
    assert rows_of(sender.send(mine, 3).trees)[0] == [5, 6, 7]


def test_what_was_to_be_freed_while_it_was_away_is_freed_when_it_is_back(remote: Remote) -> None:
    there = There()
    drafter, sender, mine = begun(remote(there))
    sender.send(mine, 3)
    for _ in range(2):
        there.gone = True
        with pytest.raises(PortError):
            sender.send(mine, 3)
        assert drafter.draft(sender.work([Text(3, [1, 2])], 3, frees=[77])).seen.tolist() == [0], "it was told nothing"
        there.gone = False
        up(drafter)
    sender.send(mine, 3)
    assert there.freed == [77, 77]


def test_another_place_takes_over_and_replays(remote: Remote) -> None:
    one, two = There("one:1/draft"), There("two:1/draft")
    two.clock = one.clock
    _, sender, mine = begun(remote(one, two, now=one.clock.now))
    expected = rows_of(sender.send(mine, 3).trees)
    at = next(each for each in (one, two) if each.drafts)
    other = two if at is one else one
    at.gone = True
    with pytest.raises(PortError):
        sender.send(mine, 3)
    assert sender.send(mine, 3).status.tolist() == [RowStatus.STALE] * 2
    assert rows_of(sender.send(mine, 3).trees) == expected
    assert other.drafts == 2


def test_it_moves_where_that_pays_and_not_for_a_little(remote: Remote) -> None:
    one, two = There("one:1/draft"), There("two:1/draft")
    two.clock = one.clock
    one.slow = two.slow = 0.004
    _, sender, mine = begun(remote(one, two, now=one.clock.now))
    sender.send(mine, 3)
    at, other = (one, two) if one.drafts else (two, one)
    other.slow = 0.003
    for _ in range(10):
        sender.send(mine, 3)
    assert not other.drafts
    at.slow = 0.05
    for _ in range(60):
        sender.send(mine, 3)
    assert other.drafts > 0
    before = at.drafts
    for _ in range(10):
        sender.send(mine, 3)
    assert at.drafts == before, "it stays"


def test_another_vocabulary_is_never_asked_to_draft(remote: Remote) -> None:
    there = There(vocab_size=VOCABULARY + MOST_SURPLUS + 1)
    drafter = remote(there)
    sender = Sender(drafter, new_origin("a"))
    until(lambda: len(there.asked) > 1)  # and was not believed
    assert drafter.draft(sender.work(texts(), 3)).again_seconds > 0
    assert not there.drafts
    with pytest.raises(PortError, match=f"vocabulary has {VOCABULARY + MOST_SURPLUS + 1}"):
        drafter.info()


def test_tokens_that_the_target_does_not_have_are_no_draft(remote: Remote) -> None:
    there = There(vocab_size=0)
    drafter = remote(there)
    up(drafter)
    with pytest.raises(PortError, match="tokens outside the target's vocabulary"):
        Sender(drafter, new_origin("a")).send([Text(1, [200, 201, 200])], 2)


def test_a_place_that_does_not_answer_in_time_is_no_place(remote: Remote) -> None:
    waits: list[float] = []

    class Mute(There):
        def exchange(self, message: Ints, seconds: float) -> Ints:
            if self.gone and codec.kind_of(message) != codec.INFO_REQUEST.kind:
                waits.append(seconds)
                raise PortTimeout("no answer")
            return super().exchange(message, seconds)

    there = Mute()
    drafter, sender, mine = begun(remote(there))
    sender.send(mine, 3)
    there.gone = True
    with pytest.raises(PortTimeout):
        drafter.draft(replace(sender.work(mine, 3), patience=0.2))
    assert waits == [SHARE * 0.2], "its sender has not given up before"
    assert drafter.draft(sender.work(mine, 3)).status.tolist() == [RowStatus.SKIPPED] * 2
    assert len(waits) == 1, "no draft waits for it"


def test_a_profile_says_where_it_is_and_names_a_secret(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    entry = tmp_path / "draft_remote" / "1"
    entry.mkdir(parents=True)

    def load(**star: Any) -> Any:
        settings = Profile("mine", star=StarSettings(**star), speculation=SpeculationSettings())
        return load_drafter("remote", entry, tmp_path, settings, name="draft_remote")

    servers = ("draft_other=127.0.0.1:1/a", "draft_remote=127.0.0.1:1/draft_code")
    with pytest.raises(SettingError, match="add draft_remote=HOST:PORT/MODEL"):
        load(servers=servers[:1])
    with pytest.raises(SettingError, match=r"star\.secret"):
        load(servers=servers)
    secret.chmod(0o644)
    with pytest.raises(SettingError, match="chmod 600"):
        load(servers=servers, secret=str(secret))


@pytest.mark.parametrize("what", ["raises", "nested", "no numbers"])
def test_whatever_a_place_says_of_itself_the_thread_that_looks_goes_on(remote: Remote, what: str) -> None:
    class Odd(There):
        odd = True

        def exchange(self, message: Ints, seconds: float) -> Ints:
            if not self.odd:
                return super().exchange(message, seconds)
            self.asked.append(codec.INFO_REQUEST.kind)
            if what == "raises":
                raise RuntimeError("the channel is closed")
            if what == "nested":
                message = codec.pack(codec.INFO_REPLY, info="x" * 400_000)
                message[6:] = np.frombuffer(b"[[[[", np.int32)
                return message
            return codec.pack(codec.INFO_REPLY, info={**asdict(self.service.info()), "resident_bytes": "none"})

    there = Odd()
    drafter = remote(there)
    until(lambda: len(there.asked) > 1)
    there.odd = False
    up(drafter)
    assert Sender(drafter, new_origin("a")).send(texts(), 3).status.tolist() == [RowStatus.OK] * 2

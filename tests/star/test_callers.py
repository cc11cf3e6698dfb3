"""Whose a message is, and whose tags it may touch."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.contracts.errors import PortError, SettingError
from covey.contracts.types import Ints
from covey.star.callers import HERE, MOST_SENDERS, READ_SECONDS, Authenticator, CallingServer, read, token_of
from covey.wire import codec
from covey.wire.ledger import INCARNATION_BITS, group_of, new_origin

EAST, WEST = "secret-of-the-east-server", "secret-of-the-west-server"


def listed(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "callers"
    path.write_text(text)
    path.chmod(mode)
    return path


def sealed(token: int) -> Ints:
    message = codec.pack(codec.INFO_REQUEST)
    codec.seal(message, token)
    return message


def test_a_file_names_servers_their_secrets_and_their_shares(tmp_path: Path) -> None:
    text = f"\ufeff# servers\n\neast {EAST}\nwest {WEST} 2.5  # the large one\n"
    found = read(listed(tmp_path, text))
    assert found == [CallingServer("east", token_of(EAST)), CallingServer("west", token_of(WEST), 2.5)]


@pytest.mark.parametrize(
    ("text", "mode", "named"),
    [
        (f"east {EAST}\n", 0o644, "chmod 600"),
        ("east short\n", 0o600, "line 1: the secret of east is shorter"),
        (f"\neast {EAST} 0\n", 0o600, "line 2: got weight '0'"),
        (f"east {EAST} much\n", 0o600, "weight 'much'"),
        (f"east {EAST} 1e-308\n", 0o600, "from 0.001 to 1000"),
        (f"east {EAST} nan\n", 0o600, "weight 'nan'"),
        (f"east {EAST}\neast {WEST}\n", 0o600, "each needs its own"),
        (f"east {EAST}\nwest {EAST}\n", 0o600, "each needs its own"),
        ("east\n", 0o600, "NAME SECRET"),
    ],
)
def test_what_is_wrong_with_it_is_named_but_no_secret(tmp_path: Path, text: str, mode: int, named: str) -> None:
    with pytest.raises(SettingError) as caught:
        read(listed(tmp_path, text, mode))
    assert named in str(caught.value)
    assert EAST not in str(caught.value)


def test_what_one_claims_to_be_is_never_what_another_is() -> None:
    auth, claimed = Authenticator(17), new_origin("host 1 covey")
    mine = auth.origin("east", claimed)
    assert auth.origin("east", claimed) == mine
    assert mine >> INCARNATION_BITS != claimed >> INCARNATION_BITS
    assert auth.origin("west", claimed) >> INCARNATION_BITS != mine >> INCARNATION_BITS
    assert auth.origin("west", mine) != mine
    again = auth.origin("east", new_origin("host 1 covey"))
    assert again != mine
    assert again >> INCARNATION_BITS == mine >> INCARNATION_BITS, "its next incarnation closes what this one left"
    assert Authenticator(17).origin("east", claimed) != mine, "nobody can work it out elsewhere"
    assert 0 <= mine < 1 << 63


def test_all_names_of_one_server_are_of_one_group_and_no_more_than_it_may_have() -> None:
    auth = Authenticator(17, [CallingServer("east", token_of(EAST)), CallingServer("west", token_of(WEST))])
    claimed = [new_origin(f"sender {index}") for index in range(3 * MOST_SENDERS)]
    kept = [auth.origin("east", each) for each in claimed]
    assert len({group_of(each) for each in kept}) == 1
    assert len({each >> INCARNATION_BITS for each in kept}) == MOST_SENDERS, "the first make room for the last"
    assert len({each >> INCARNATION_BITS for each in kept[:MOST_SENDERS]}) == MOST_SENDERS
    others = {group_of(auth.origin("west", claimed[0])), *(group_of(auth.origin(HERE, each)) for each in claimed[:2])}
    assert len(others | {group_of(kept[0])}) == 4, "our own models are each for themselves"


def test_where_no_launcher_drew_a_token_nobody_is_one_of_our_own_models() -> None:
    auth = Authenticator(0, [CallingServer("east", token_of(EAST))])
    assert auth.caller(sealed(token_of(EAST))) == "east"
    with pytest.raises(PortError, match="not of this server"):
        auth.caller(sealed(0))
    assert Authenticator(0).caller(sealed(0)) == HERE, "in one process, where nobody else comes"


def test_a_server_that_is_added_to_the_file_comes_in_without_a_restart(tmp_path: Path) -> None:
    path, now, readings = listed(tmp_path, f"east {EAST}\n"), [0.0], []

    def again() -> list[CallingServer]:
        readings.append(now[0])
        return read(path)

    auth = Authenticator(17, again(), again, lambda: now[0])
    listed(tmp_path, f"west {WEST}\n")
    assert auth.caller(sealed(token_of(EAST))) == "east", "a known one has the file read no more"
    assert auth.caller(sealed(token_of(WEST))) == "west"
    with pytest.raises(PortError):
        auth.caller(sealed(token_of(EAST)))
    assert len(readings) == 2, "strangers have it read once a second"
    now[0] += READ_SECONDS
    listed(tmp_path, f"east {EAST}\n", 0o644)
    with pytest.raises(PortError):
        auth.caller(sealed(token_of(EAST)))
    assert auth.caller(sealed(token_of(WEST))) == "west", "what cannot be read changes nothing"

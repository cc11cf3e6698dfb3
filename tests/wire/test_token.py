"""The token of a server's own models."""

from __future__ import annotations

import pytest

from covey.wire.token import VARIABLE, same, token


def test_no_launcher_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert token() == 0
    monkeypatch.setenv(VARIABLE, "")
    assert token() == 0


def test_the_token_is_the_variable_as_63_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1f")
    assert token() == 0x1F
    monkeypatch.setenv(VARIABLE, "f" * 32)
    assert token() == (1 << 63) - 1


@pytest.mark.parametrize("own", [0, 1, (1 << 63) - 1])
def test_a_token_is_the_same_as_itself_alone(own: int) -> None:
    assert same(own, own)
    assert not any(same(given, own) for given in (own ^ 1, own ^ (1 << 40), -1, -own - 1))

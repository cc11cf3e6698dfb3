"""The token of a server's own models."""

from __future__ import annotations

import pytest

from covey.tritonio.token import VARIABLE, token


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

"""Who looks again and again is not ended by one look, and ends when told to."""

from __future__ import annotations

import threading
import time

import pytest

from covey.contracts.errors import CoveyError
from covey.supervision.watch import Watch


def test_a_look_that_fails_is_not_the_last_and_none_follows_the_end(caplog: pytest.LogCaptureFixture) -> None:
    again, looks = threading.Event(), []

    def look() -> None:
        looks.append(len(looks))
        if len(looks) == 1:
            raise RuntimeError("unforeseen")
        if len(looks) < 5:
            raise CoveyError("nobody answers")
        again.set()

    watch = Watch("calls that hang", look, 0.01)
    assert again.wait(10)
    watch.stop()
    made = len(looks)
    time.sleep(0.1)
    assert len(looks) == made
    assert caplog.text.count("cannot see calls that hang, trying again every 0.01 s: nobody answers") == 1

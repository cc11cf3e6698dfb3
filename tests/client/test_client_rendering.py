"""Templates that take all memory or all time are refused in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from covey_client.rendering import KILLED, SECONDS

DOUBLED = "{% set ns = namespace(s='aaaaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
LARGE = ["{{ 'a' * (10 ** 10) }}", "{{ range(99999) | join('a' * 100000) }}", DOUBLED]
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ONE_CALL = "{{ [[1] * 60000] * 60000 == [[1] * 60000] * 60000 }}"  # into C, which looks for no signals
CODE = """
import sys
from covey_client.chat import Template
from covey_client.rendering import bounded
with bounded(float(sys.argv[1])):
    Template(sys.argv[2]).render([])
"""


def rendered(source: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CODE, str(seconds), source], stderr=subprocess.PIPE, text=True, check=False
    )


@pytest.mark.parametrize("source", LARGE)
def test_memory_is_bounded(source: str) -> None:
    assert "InvalidRequest: template: it takes more than 512 MiB of memory" in rendered(source).stderr


def test_time_is_bounded() -> None:
    assert "InvalidRequest: template: it takes longer than 0.2 s" in rendered(LOOPS, 0.2).stderr
    assert rendered(ONE_CALL, 0.2).returncode == KILLED

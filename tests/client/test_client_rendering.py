"""Templates that take all memory or all time are refused in one line."""

from __future__ import annotations

import pytest

from covey_client import InvalidRequest
from covey_client.chat import Chat, Template
from covey_client.rendering import apart

DOUBLED = "{% set ns = namespace(s='aaaaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
LARGE = ["{{ 'a' * (10 ** 10) }}", "{{ range(99999) | join('a' * 100000) }}", DOUBLED]
ENDLESS = [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ [[1] * 60000] * 60000 == [[1] * 60000] * 60000 }}",  # one call into C, which looks for no signals
]


@pytest.mark.parametrize("source", LARGE)
def test_memory_is_bounded(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^template: it takes more than 512 MiB of memory$"):
        apart(Template(source), [])


@pytest.mark.parametrize("source", ENDLESS)
def test_time_is_bounded(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"takes longer than 0\.2 s"):
        apart(Template(source), [], seconds=0.2)


def test_a_conversation_s_template_is_rendered_apart() -> None:
    """What it writes comes unchanged, its ends of lines too."""
    template = Template("{{ messages[0].content }}é\n\n{{ eos_token }}", tokens={"eos_token": "</s>"})
    assert Chat(template).prompt("ü\r\n") == template.render([{"role": "user", "content": "ü\r\n"}]) == "ü\r\né\n\n</s>"
    with pytest.raises(InvalidRequest, match="of memory"):
        Chat(Template(LARGE[0])).prompt("a")

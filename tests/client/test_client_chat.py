"""Conversations as prompts, and the figures of a metrics port, with rates between two looks at it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from covey_client import InvalidRequest
from covey_client.chat import Template, of_folder
from covey_client.cli import main
from covey_client.rates import MetricsSnapshot, Span
from covey_client.rendering import KILLED, SECONDS
from covey_client.status import KEY, ModelStatus, Status, figures, parse


def test_the_template_of_a_model_folder(tmp_path: Path) -> None:
    settings = {"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}{{ messages[0]['content'] }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert of_folder(tmp_path).render([{"role": "user", "content": "Hi"}]) == "<s>Hi"


def test_what_templates_expect_of_transformers() -> None:
    source = "{% for m in messages %}{% generation %}{{ m.content | tojson(ensure_ascii=False) }}{% endgeneration %}"
    source += "{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=True) }}{% endfor %}"
    assert Template(source).render([{"content": "é"}]) == '"é"{"a":2,"b":1}'


def test_templates_that_cannot_work(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"tokenizer_config\.json"):
        of_folder(tmp_path)
    with pytest.raises(InvalidRequest, match="no"):
        Template("{{ raise_exception('no') }}").render([{"role": "user", "content": "Hi"}])


DOUBLED = "{% set ns = namespace(s='aaaaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
LARGE = ["{{ 'a' * (10 ** 10) }}", "{{ range(99999) | join('a' * 100000) }}", DOUBLED]
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
ONE_CALL = "{{ [[1] * 60000] * 60000 == [[1] * 60000] * 60000 }}"  # into C, which looks for no signals
CODE = """
import sys
from covey_client.chat import Template
from covey_client.errors import InvalidRequest
from covey_client.rendering import bounded
for source in sys.argv[2:]:
    try:
        with bounded(float(sys.argv[1])):
            Template(source).render([])
    except InvalidRequest as error:
        print(error)
"""


def rendered(seconds: float, *sources: str) -> tuple[list[str], int]:
    words = [sys.executable, "-c", CODE, str(seconds), *sources]
    ran = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    return ran.stdout.splitlines(), ran.returncode


def test_memory_and_time_are_bounded() -> None:
    assert rendered(SECONDS, *LARGE) == (["template: it takes more than 512 MiB of memory"] * len(LARGE), 0)
    assert rendered(0.2, LOOPS) == (["template: it takes longer than 0.2 s"], 0)
    assert rendered(0.2, ONE_CALL) == ([], KILLED)


METRICS = """
# HELP covey_requests_total Requests
# TYPE covey_requests_total counter
covey_requests_total{model="covey",outcome="eos",version="1"} 3
covey_requests_total{model="covey",outcome="length",version="1"} 1
covey_ttft_seconds_bucket{model="covey",le="0.1"} 2
covey_ttft_seconds_count{model="covey"} 4
covey_ttft_seconds_sum{model="covey"} 2.0
nv_inference_count{model="covey",version="1"} 9
covey_no_number abc
"""
Shown = Callable[..., str]


def test_figures_of_the_metrics_port() -> None:
    assert figures(parse(METRICS)) == {
        "covey_requests_total{outcome=eos}": 3.0,
        "covey_requests_total{outcome=length}": 1.0,
        "covey_ttft_seconds_count": 4.0,
        "covey_ttft_seconds_mean": 0.5,
    }


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    """What `covey status` prints of a page of metrics and of models."""

    def run(page: str, models: tuple[ModelStatus, ...], *words: str) -> str:
        monkeypatch.setattr("covey_client.status.read", lambda *_: Status(True, models, parse(page)))
        assert main(["status", "--url", "localhost:1", *words]) == 0
        return capsys.readouterr().out

    return run


def test_status_shows_what_a_stranger_says_as_it_is(shown: Shown) -> None:
    page = 'covey_target_info{target="[bold]a\x1b[31m"} 1\ncovey_x{a="[/red]\x1b"} 1\ncovey_y NaN\ncovey_z +Inf\n'
    models = (ModelStatus("[/x]", "[green]", "\x1b]0;a"),)
    said = shown(page, models, "--all")
    assert "\x1b" not in said
    for text in ("[bold]a\\x1b[31m: on ?", "covey_x{a=[/red]\\x1b}", "[/x]", "[green]", "\\x1b]0;a"):
        assert text in said
    figures = json.loads(shown(page, models, "--json"), parse_constant=pytest.fail)["figures"]
    assert (figures["covey_y"], figures["covey_z"]) == (None, None)


def test_status_shows_the_figures_that_matter_and_all_of_them_if_asked(shown: Shown) -> None:
    """Also while nothing has been asked yet: totals are then 0."""
    idle = 'covey_requests_running{model="covey"} 0\ncovey_kv_blocks{model="covey",state="free"} 9\n'
    drafts = "".join(
        f'covey_spec_decode_num_draft_tokens_total{{model="covey",drafter="{name}"}} 4\n' for name in ("a", "b")
    )
    rest = 'covey_planner_rounds_total{model="covey",depth="0",why="best"} 7\n'
    models = (ModelStatus("covey", "READY"), ModelStatus("draft_chat", ""))

    def rows(page: str, *words: str) -> dict[str, str]:
        lines = (line.split() for line in shown(page, models, *words).splitlines())
        return {line[0]: line[-1] for line in lines if len(line) >= 2}

    found = rows(idle)
    assert (found["covey_requests_running"], found["covey_requests_total"]) == ("0", "0")
    assert "covey_requests_total{outcome=error}" in found
    assert "covey_time_to_first_token_seconds_mean" not in found
    found = rows(idle + drafts + METRICS + rest)
    assert found["covey_requests_total"] == "4"
    assert found["covey_spec_decode_num_draft_tokens_total"] == "8"
    assert sum(name.startswith("covey_") for name in found) <= 20 == len(KEY)
    assert not {"covey_planner_rounds_total{depth=0,why=best}", "draft_chat"} & found.keys()
    found = rows(idle + drafts + METRICS + rest, "--all")
    assert found["covey_planner_rounds_total{depth=0,why=best}"] == "7"
    assert found["covey_spec_decode_num_draft_tokens_total{drafter=a}"] == "4"
    assert "draft_chat" in found


def test_labels_are_whole_on_a_narrow_screen(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    long = "covey_spec_decode_num_accepted_tokens_per_pos_total"
    said = shown(f'{long}{{model="covey",drafter="draft_general",position="5"}} 7\n', (), "--all")
    assert f"{long}{{drafter=draft_general,position=5}}" in "".join(said.replace("7", "").split())


def page_after(rounds: int) -> str:
    """A metrics page."""
    done = rounds // 10
    return f"""# HELP covey_rounds_total Rounds of the engine
covey_rounds_total{{model="covey"}} {rounds}
covey_generation_tokens_total{{model="covey"}} {4 * rounds}
covey_round_seconds_total{{model="covey",phase="pass"}} {0.03 * rounds}
covey_round_seconds_total{{model="covey",phase="draft"}} {0.01 * rounds}
covey_requests_total{{model="covey",outcome="eos"}} {done}
covey_requests_total{{model="covey",outcome="refused"}} {done}
covey_spec_decode_num_drafts_total{{model="covey",drafter="draft_code"}} {rounds}
covey_spec_decode_num_draft_tokens_total{{model="covey",drafter="draft_code"}} {5 * rounds}
covey_spec_decode_num_accepted_tokens_total{{model="covey",drafter="draft_code"}} {3 * rounds}
"""


def reading(at: float, rounds: int) -> MetricsSnapshot:
    return MetricsSnapshot(at, parse(page_after(rounds)))


def test_rates_and_ratios() -> None:
    span = Span(reading(10.0, 100), reading(15.0, 200))
    assert span.rate("covey_rounds_total") == 20
    assert span.rate("covey_requests_total") == 4
    assert span.rate("covey_requests_total", outcome="refused") == 2
    assert span.rate("covey_nothing_total") is None
    assert span.ratio("covey_spec_decode_num_accepted_tokens_total", "covey_spec_decode_num_draft_tokens_total") == 0.6
    assert span.ratio("covey_rounds_total", "covey_nothing_total") is None
    assert span.grew_by("covey_round_seconds_total", "phase") == pytest.approx({"pass": 3.0, "draft": 1.0})


def test_a_server_that_was_started_again_counts_from_zero() -> None:
    assert Span(reading(0.0, 500), reading(10.0, 100)).rate("covey_rounds_total") == 10


def test_one_reading_has_no_rates() -> None:
    one = reading(0.0, 100)
    assert Span(one, one).rate("covey_rounds_total") is None
    assert Span(one, one).ratio("covey_rounds_total", "covey_rounds_total") is None

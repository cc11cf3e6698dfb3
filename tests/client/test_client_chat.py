"""Conversations as prompts, and the figures of a metrics port."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from covey_client import InvalidRequest
from covey_client.chat import Template, of_folder
from covey_client.cli import main
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


METRICS = """
# HELP covey_requests_total Requests
# TYPE covey_requests_total counter
covey_requests_total{model="covey",outcome="eos",version="1"} 3
covey_requests_total{model="covey",outcome="length",version="1"} 1
covey_ttft_seconds_bucket{model="covey",le="0.1"} 2
covey_ttft_seconds_count{model="covey"} 4
covey_ttft_seconds_sum{model="covey"} 2.0
nv_inference_count{model="covey",version="1"} 9
"""


def test_figures_of_the_metrics_port() -> None:
    assert figures(parse(METRICS)) == {
        "covey_requests_total{outcome=eos}": 3.0,
        "covey_requests_total{outcome=length}": 1.0,
        "covey_ttft_seconds_count": 4.0,
        "covey_ttft_seconds_mean": 0.5,
    }


def test_a_number_that_is_none_is_left_out() -> None:
    assert [each.value for each in parse("covey_x abc\ncovey_x 1\n")] == [1.0]


def test_status_shows_what_a_stranger_says_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = 'covey_target_info{target="[bold]a\x1b[31m"} 1\ncovey_x{a="[/red]\x1b"} 1\ncovey_y NaN\ncovey_z +Inf\n'
    looked = Status(True, (ModelStatus("[/x]", "[green]", "\x1b]0;a"),), parse(page))
    monkeypatch.setattr("covey_client.status.read", lambda *_: looked)
    assert main(["status", "--url", "localhost:1", "--all"]) == 0
    said = capsys.readouterr().out
    assert "\x1b" not in said
    for text in ("[bold]a\\x1b[31m: on ?", "covey_x{a=[/red]\\x1b}", "[/x]", "[green]", "\\x1b]0;a"):
        assert text in said
    assert main(["status", "--url", "localhost:1", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["figures"]
    assert (figures["covey_y"], figures["covey_z"]) == (None, None)


def test_status_shows_the_figures_that_matter_and_all_of_them_if_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also while nothing has been asked yet: totals are then 0."""
    idle = 'covey_requests_running{model="covey"} 0\ncovey_kv_blocks{model="covey",state="free"} 9\n'
    drafts = "".join(
        f'covey_spec_decode_num_draft_tokens_total{{model="covey",drafter="{name}"}} 4\n' for name in ("a", "b")
    )
    rest = 'covey_planner_rounds_total{model="covey",depth="0",why="best"} 7\n'
    models = (ModelStatus("covey", "READY"), ModelStatus("draft_chat", ""))

    def shown(page: str, *words: str) -> dict[str, str]:
        monkeypatch.setattr("covey_client.status.read", lambda *_: Status(True, models, parse(page)))
        assert main(["status", "--url", "localhost:1", *words]) == 0
        rows = (line.split() for line in capsys.readouterr().out.splitlines())
        return {row[0]: row[-1] for row in rows if len(row) >= 2}

    found = shown(idle)
    assert (found["covey_requests_running"], found["covey_requests_total"]) == ("0", "0")
    assert "covey_requests_total{outcome=error}" in found
    assert "covey_time_to_first_token_seconds_mean" not in found
    found = shown(idle + drafts + METRICS + rest)
    assert found["covey_requests_total"] == "4"
    assert found["covey_spec_decode_num_draft_tokens_total"] == "8"
    assert sum(name.startswith("covey_") for name in found) <= 20 == len(KEY)
    assert not {"covey_planner_rounds_total{depth=0,why=best}", "draft_chat"} & found.keys()
    found = shown(idle + drafts + METRICS + rest, "--all")
    assert found["covey_planner_rounds_total{depth=0,why=best}"] == "7"
    assert found["covey_spec_decode_num_draft_tokens_total{drafter=a}"] == "4"
    assert "draft_chat" in found


def test_labels_are_whole_on_a_narrow_screen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    long = "covey_spec_decode_num_accepted_tokens_per_pos_total"
    samples = parse(f'{long}{{model="covey",drafter="draft_general",position="5"}} 7\n')
    looked = Status(True, (), samples)
    monkeypatch.setattr("covey_client.status.read", lambda *_: looked)
    assert main(["status", "--url", "localhost:1", "--all"]) == 0
    assert f"{long}{{drafter=draft_general,position=5}}" in "".join(capsys.readouterr().out.replace("7", "").split())

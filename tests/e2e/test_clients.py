"""Clients that others made find Covey as they are: litellm, LangChain, instructor, lm-eval and aiperf, each in an
environment of its own (aiperf wants another numpy than the server), and a page in a browser."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covey.contracts import profile
from covey.launcher import Server
from covey.launcher.front import Front
from tests.e2e.serving import total
from tests.e2e.test_openai import MESSAGES
from tests.fronts import fronting, library
from tests.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

CLIENTS = Path(__file__).parent / "clients"
INSTALL_SECONDS, SECONDS = 1200, 120
pytestmark.append(pytest.mark.timeout(INSTALL_SECONDS + SECONDS))


def environment(package: str, *beside: str) -> Path:
    """The folder of the programs of a package's own environment, which is kept for the next time. `beside`: what else
    it takes."""
    folder = Path(sys.prefix) / "covey" / "clients" / package
    installed = folder / "installed"
    if not installed.is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=SECONDS)
        words = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        words += [package, *beside]
        ran = subprocess.run(words, check=False, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        if ran.returncode:
            pytest.skip(f"{package} cannot be installed here: {ran.stderr.strip().splitlines()[-1]}")
        installed.touch()
    return folder / "bin"


def asked(front: Front, **more: Any) -> str:
    """What OpenAI's own library is answered."""
    with library(front) as client:
        said = client.chat.completions.create(model="covey", messages=MESSAGES, temperature=0.0, **more)
    return said.choices[0].message.content or ""


def told(script: str, front: Front, packages: tuple[str, ...], *words: object, **own: str) -> Any:
    """What a script of `clients` says of the front, which it asks by the first of these packages."""
    python = environment(*packages) / "python"
    command = [str(python), str(CLIENTS / f"{script}_asks.py"), f"http://{front.http_url}/v1", *map(str, words)]
    ran = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=2 * SECONDS, env={**os.environ, **own}
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.splitlines()[-1])


def test_litellm(front: Front) -> None:
    packages = ("litellm", "mcp")  # which it imports where there are tools
    found = told("litellm", front, packages, LITELLM_LOCAL_MODEL_COST_MAP="True")  # it would fetch a list of prices
    assert found["whole"] == found["streamed"] == asked(front, max_tokens=16)
    assert found["counted"] == [16, 16]
    assert found["called"][0] == ["weather", {"place": "Rome"}]
    assert found["ended"] == "tool_calls"
    assert found["text"]
    assert "temperature: got -1.0" in found["refused"]


def test_langchain(front: Front) -> None:
    found = told("langchain", front, ("langchain-openai",))
    assert found["whole"] == asked(front, max_tokens=16)
    assert [found["whole"]] * 4 == [found["streamed"], found["responses"], *found["batch"]]
    assert found["counted"] == [16, 16, 16]
    assert found["called"] == [["weather", {"place": found["called"][0][1]["place"]}]]
    assert {found["called"][0][1]["place"], found["formed"]["place"]} <= {"Rome", "Oslo"}
    assert found["text"]
    assert "temperature: got -1.0" in found["refused"]


def test_instructor(front: Front) -> None:
    found = told("instructor", front, ("instructor",))
    assert found["place"] in ("Rome", "Oslo")
    assert found["rain"] in (True, False)


def test_lm_eval(server: Server, front: Front, tmp_path: Path) -> None:
    """Texts are scored, and written, as OpenAI's own library is told."""
    packages, tokenizer = ("lm-eval", "lm-eval[api]", "transformers"), server.options.repository_folder() / "target/1"
    found = told("lm_eval", front, packages, tokenizer, tmp_path, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path))
    own = []
    with library(front) as client:
        for choice in found["choices"]:
            text = found["text"] + choice
            scores = client.completions.create(model="covey", prompt=text, echo=True, max_tokens=0, logprobs=1)
            told_scores = scores.choices[0].logprobs
            assert told_scores is not None
            places = zip(told_scores.text_offset or [], told_scores.token_logprobs or [])
            own.append(sum(score for at, score in places if at >= len(found["text"]) and score is not None))
        written = client.completions.create(
            model="covey", prompt=found["text"], max_tokens=12, temperature=0.0, stop=["\n"]
        )
    assert found["likelihoods"] == pytest.approx(own, abs=1e-6)
    assert len(set(own)) == len(own)
    assert found["accuracy"] == float(own.index(max(own)) == 0)
    assert found["words"] == written.choices[0].text


@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_aiperf(server: Server, front: Front, tmp_path: Path, kind: str) -> None:
    tokenizer = server.options.repository_folder() / "target" / "1"
    words = [str(environment("aiperf==0.13.*") / "aiperf"), "profile", "--model", "covey", "--url", front.http_url]
    words += ["--endpoint-type", kind, "--streaming", "--tokenizer", str(tokenizer), "--ui-type", "none"]
    words += ["--request-count", "6", "--concurrency", "3", "--synthetic-input-tokens-mean", "24"]
    words += ["--output-tokens-mean", "12", "--extra-inputs", "ignore_eos:true", "--artifact-dir", str(tmp_path)]
    ran = subprocess.run(words, check=False, capture_output=True, text=True, timeout=2 * SECONDS, cwd=tmp_path)
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-3000:]
    found = json.loads(next(tmp_path.rglob("profile_export_aiperf.json")).read_text(encoding="utf-8"))
    assert found["request_count"]["avg"] == 6
    assert found["output_sequence_length"]["avg"] > 1
    assert found["time_to_first_token"]["avg"] > 0


class Pages(http.server.SimpleHTTPRequestHandler):
    """Serves the pages, and takes what one of them found."""

    found: Any = None

    def do_POST(self) -> None:
        type(self).found = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def page() -> Iterator[tuple[str, type[Pages]]]:
    """The origin of the pages, and where their findings are."""

    class Own(Pages): ...

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Own, directory=str(CLIENTS)))
    threading.Thread(target=made.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{made.server_address[1]}", Own
    finally:
        made.shutdown()
        made.server_close()


def test_a_page_in_a_browser(server: Server, page: tuple[str, type[Pages]], tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("neither chromium nor google-chrome is installed")
    origin, pages = page
    own = tmp_path / "page.toml"
    own.write_text(
        f'{profile.find(server.options.profile).read_text(encoding="utf-8")}\n[front]\norigins = ["{origin}"]\n'
    )
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}"]
    with fronting(server, profile=str(own)) as front:
        looking = subprocess.Popen(
            [*words, f"{origin}/page.html?door=http://{front.http_url}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(lambda: pages.found is not None, lambda: "the page found nothing", SECONDS)
        finally:
            looking.terminate()
            looking.wait(30)
        found = pages.found
        assert "error" not in found, found
        assert found["whole"] == asked(front, max_tokens=24)
        assert found["streamed"] == asked(front, max_tokens=200, extra_body={"ignore_eos": True})
        assert found["apart"] > 100, "the events came together: something keeps them"
        assert found["refused"] == [400, "temperature"]
        until(lambda: not total(server, "covey_requests_running"), lambda: "what the page left goes on", 5.0)

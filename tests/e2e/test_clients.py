"""Clients that others made find Covey as they are: litellm, LangChain, instructor, lm-eval and aiperf, each in an
environment of its own (aiperf wants another numpy than the server), and a page in a browser, by itself and through a
proxy."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from covey.contracts import profile
from covey.launcher import FREE, Server
from covey.launcher.front import Front
from tests.e2e.test_openai import MESSAGES, running

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
    with openai.OpenAI(base_url=f"http://{front.http_url}/v1", api_key="none", max_retries=0) as client:
        said = client.chat.completions.create(model="covey", messages=MESSAGES, temperature=0.0, **more)
    return said.choices[0].message.content or ""


def test_litellm(front: Front) -> None:
    python = environment("litellm", "mcp") / "python"  # which it imports where there are tools
    words = [str(python), str(CLIENTS / "litellm_asks.py"), f"http://{front.http_url}/v1"]
    alone = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # it would fetch a list of prices
    ran = subprocess.run(words, check=False, capture_output=True, text=True, timeout=2 * SECONDS, env=alone)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["whole"] == found["streamed"] == asked(front, max_tokens=16)
    assert found["counted"] == [16, 16]
    assert found["called"][0] == ["weather", {"place": "Rome"}]
    assert found["ended"] == "tool_calls"
    assert found["text"]
    assert "temperature: got -1.0" in found["refused"]


def test_langchain(front: Front) -> None:
    python = environment("langchain-openai") / "python"
    words = [str(python), str(CLIENTS / "langchain_asks.py"), f"http://{front.http_url}/v1"]
    ran = subprocess.run(words, check=False, capture_output=True, text=True, timeout=2 * SECONDS)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["whole"] == asked(front, max_tokens=16)
    assert [found["whole"]] * 4 == [found["streamed"], found["responses"], *found["batch"]]
    assert found["counted"] == [16, 16, 16]
    assert found["called"] == [["weather", {"place": found["called"][0][1]["place"]}]]
    assert {found["called"][0][1]["place"], found["formed"]["place"]} <= {"Rome", "Oslo"}
    assert found["text"]
    assert "temperature: got -1.0" in found["refused"]


def test_instructor(front: Front) -> None:
    words = [
        str(environment("instructor") / "python"),
        str(CLIENTS / "instructor_asks.py"),
        f"http://{front.http_url}/v1",
    ]
    ran = subprocess.run(words, check=False, capture_output=True, text=True, timeout=2 * SECONDS)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    assert found["place"] in ("Rome", "Oslo")
    assert found["rain"] in (True, False)


def test_lm_eval(server: Server, front: Front, tmp_path: Path) -> None:
    """Texts are scored, and written, as OpenAI's own library is told."""
    python = environment("lm-eval", "lm-eval[api]", "transformers") / "python"
    url, tokenizer = f"http://{front.http_url}/v1", server.options.repository_folder() / "target" / "1"
    words = [str(python), str(CLIENTS / "lm_eval_asks.py"), url, str(tokenizer), str(tmp_path)]
    alone = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    ran = subprocess.run(words, check=False, capture_output=True, text=True, timeout=2 * SECONDS, env=alone)
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    own = []
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        for choice in found["choices"]:
            text = found["text"] + choice
            scores = client.completions.create(model="covey", prompt=text, echo=True, max_tokens=0, logprobs=1)
            told = scores.choices[0].logprobs
            assert told is not None
            places = zip(told.text_offset or [], told.token_logprobs or [])
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


@contextmanager
def through(proxy: str, front: Front, folder: Path) -> Iterator[str]:
    """The address of the door, or of a proxy before it."""
    if not proxy:
        yield front.http_url
        return
    if shutil.which(proxy) is None:
        pytest.skip(f"{proxy} is not installed")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/errors; events {{}}\n"
        f"http {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;"
        f" fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://{front.http_url};"
        " proxy_http_version 1.1; } } }\n"
    )
    running_one = subprocess.Popen([proxy, "-c", str(folder / "nginx.conf"), "-e", str(folder / "errors")])
    try:
        yield f"127.0.0.1:{port}"
    finally:
        running_one.terminate()
        running_one.wait(10)


@pytest.mark.parametrize("proxy", ["", "nginx"])
def test_a_page_in_a_browser(server: Server, page: tuple[str, type[Pages]], tmp_path: Path, proxy: str) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("neither chromium nor google-chrome is installed")
    origin, pages = page
    own = tmp_path / "page.toml"
    own.write_text(
        f'{profile.find(server.options.profile).read_text(encoding="utf-8")}\n[front]\norigins = ["{origin}"]\n'
    )
    front = Front(replace(server.options, front_http_port=FREE, front_grpc_port=FREE, profile=str(own)), server.deaths)
    front.start()
    try:
        with through(proxy, front, tmp_path) as door:
            words = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}"]
            looking = subprocess.Popen(
                [*words, f"{origin}/page.html?door=http://{door}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            try:
                until = time.monotonic() + SECONDS
                while pages.found is None:
                    assert time.monotonic() < until, "the page found nothing"
                    time.sleep(0.05)
            finally:
                looking.terminate()
                looking.wait(30)
        found = pages.found
        assert "error" not in found, found
        assert found["whole"] == asked(front, max_tokens=24)
        assert found["streamed"] == asked(front, max_tokens=200, extra_body={"ignore_eos": True})
        assert found["apart"] > 100, "the events came together: something keeps them"
        assert found["refused"] == [400, "temperature"]
        left = time.monotonic()
        while running(server):
            assert time.monotonic() - left < 5, "what the page left goes on"
            time.sleep(0.02)
    finally:
        front.stop()

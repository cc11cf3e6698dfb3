"""The processes in which the front has templates rendered and texts cut into tokens."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from covey.front.fair_queue import Job
from covey.front.openai.text_processor import TextProcessor, WorkerReply
from covey.front.openai.texts import Texts
from covey.front.openai.worker import LONG_BYTES
from covey.front.openai.workers import Workers
from covey_client import InvalidRequest
from covey_client.errors import ServerError
from covey_client.rendering import SECONDS
from tests.waiting import until

FOLDER = Path(__file__).resolve().parents[2] / "model_repository" / "target" / "1"
SHORT, LONG = Job("a", 10), Job("a", LONG_BYTES + 1)
MESSAGES = [{"role": "user", "content": "Who is there?"}]
BLANKS = " " * (1 << 19)


@asynccontextmanager
async def workers(seconds: float = SECONDS) -> AsyncIterator[Workers]:
    made = Workers(1 << 19, 2 << 20, seconds)
    try:
        yield made
    finally:
        made.close()
        for worker in made._workers.values():
            if worker._process is not None:
                await worker._process.wait()


def folder(path: Path, template: str) -> str:
    for name in ("tokenizer.json", "config.json"):
        (path / name).symlink_to(FOLDER / name)
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return str(path)


async def test_they_find_what_is_found_in_one_process() -> None:
    here = TextProcessor(str(FOLDER), 1 << 20)
    async with workers() as made:
        texts = Texts(str(FOLDER), made)
        for turn in (SHORT, LONG):
            assert await texts.chat(turn, MESSAGES, {}) == here.chat(MESSAGES, {})
            count, ids = await texts.encode(turn, "Grüße, " * 9, special=True)
            assert count == len(json.loads(ids))
            assert await texts.decode(turn, json.loads(ids)) == "Grüße, " * 9
        assert await texts.form() == here.form()
        assert await texts.marks() == here.marks()
        with pytest.raises(InvalidRequest, match="at most 524288 bytes") as caught:
            await texts.encode(LONG, "a" + BLANKS, special=True)
        assert caught.value.field == "prompt"


async def test_a_chat_waits_for_no_long_text() -> None:
    """Nor for the short ones of a caller that has many."""
    async with workers() as made:
        texts, done = Texts(str(FOLDER), made), list[str]()

        async def note(name: str, asked: Coroutine[Any, Any, Any]) -> None:
            await asked
            done.append(name)

        await texts.chat(SHORT, MESSAGES, {})
        await texts.encode(LONG, "a", special=True)
        long = [note("long", texts.encode(Job("b", 1 << 20), BLANKS, special=True)) for _ in range(2)]
        short = [note("short", texts.encode(Job("b", 9), "a" * 30_000, special=True)) for _ in range(60)]
        tasks = [asyncio.ensure_future(each) for each in (*long, *short)]
        await asyncio.sleep(0)
        await texts.chat(SHORT, MESSAGES, {})
        assert "long" not in done
        assert len(done) < 40
        await asyncio.gather(*tasks)


async def test_a_template_that_only_the_kernel_can_end_is_refused_and_others_are_answered(tmp_path: Path) -> None:
    source = "{{ [[1] * 60000] * 60000 == [[1] * 60000] * 60000 }}"
    async with workers(0.5) as made:
        texts = Texts(folder(tmp_path, source), made)
        with pytest.raises(InvalidRequest, match=r"^messages: template: it takes longer than 0\.5 s") as caught:
            await texts.chat(SHORT, MESSAGES, {})
        assert "\n" not in str(caught.value)
        assert (await Texts(str(FOLDER), made).chat(SHORT, MESSAGES, {})).ids


@pytest.mark.parametrize("killed", [True, False])
async def test_a_worker_that_is_killed_or_paused_is_begun_again_and_asked_once_more(
    killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bound in ("PAUSED_SECONDS", "REAP_SECONDS"):
        monkeypatch.setattr(f"covey.front.openai.workers.{bound}", 0.3)
    async with workers() as made:
        texts = Texts(str(FOLDER), made)
        await texts.encode(LONG, "a", special=True)
        process = made._workers[True]._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        both = [asyncio.ensure_future(texts.encode(LONG, "a", special=True)) for _ in range(2)]
        await asyncio.sleep(0.1)
        if killed:
            os.kill(process.pid, signal.SIGKILL)
        assert [count for count, _ in await asyncio.wait_for(asyncio.gather(*both), 30)] == [1, 1]
        assert made._workers[True]._process is not process


async def test_an_error_of_a_text_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with workers() as made:
        asked = list[bytes]()

        async def answer(question: bytes) -> bytes:
            asked.append(question)
            return pickle.dumps(WorkerReply(error=ServerError("an internal error")))

        monkeypatch.setattr(made._workers[False], "_answer", answer)
        with pytest.raises(ServerError, match="an internal error"):
            await Texts(str(FOLDER), made).encode(SHORT, "a", special=True)
        assert len(asked) == 1


async def test_one_that_cannot_be_begun_is_an_error_of_the_server() -> None:
    async with workers() as made:
        made._workers[False]._words = ["/nowhere"]
        with pytest.raises(ServerError, match="cannot start the process for texts"):
            await Texts(str(FOLDER), made).encode(SHORT, "a", special=True)


async def test_what_is_nested_too_deeply_is_refused() -> None:
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    async with workers() as made:
        with pytest.raises(InvalidRequest, match="nested too deeply"):
            await Texts(str(FOLDER), made).chat(SHORT, MESSAGES, {"x": nested})


async def test_a_worker_keeps_no_memory_of_long_texts_and_no_life_without_a_front() -> None:
    async with workers() as made:
        texts = Texts(str(FOLDER), made)
        await texts.encode(LONG, "a", special=True)
        process = made._workers[True]._process
        assert process is not None
        seen = psutil.Process(process.pid)
        before = seen.memory_info().rss
        await texts.encode(LONG, "1" * (1 << 18), special=True)  # which takes 80 MiB
        await texts.encode(SHORT, "a", special=True)
        assert seen.memory_info().rss < before + (24 << 20)
        assert process.stdin is not None
        process.stdin.close()
        assert await process.wait() == 0


def test_it_ends_with_the_front() -> None:
    code = (
        "import asyncio, sys\nfrom covey.front.openai.workers import Workers\nfrom covey.front.fair_queue import Job\n"
        "async def act():\n    made = Workers(1 << 20, 1 << 20)\n"
        "    await made.ask(Job('', 0), sys.argv[1], 'encode', 'a', True)\n"
        "    print(made._workers[False]._process.pid, flush=True)\n    await asyncio.sleep(60)\nasyncio.run(act())"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(FOLDER)], stdout=subprocess.PIPE, text=True) as front:
        assert front.stdout is not None
        worker = psutil.Process(int(front.stdout.readline()))
        worker.suspend()  # it reads nothing any more
        front.kill()
        until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)

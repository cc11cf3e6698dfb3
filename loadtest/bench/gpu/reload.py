"""The part `reload` of the bench `gpu`: throughput while a drafter's weights are loaded beside it, again and again.

The weights come from files and go to the device on a stream of their own, from another thread. In the server a drafter
loads in a process of its own: what the thread takes of this one's interpreter is taken from nobody there.
"""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import torch

from covey.models.loading import load_module, quiet, read_config
from covey.types import JsonDict
from loadtest.bench import report
from loadtest.bench.gpu.rig import OFF, Rig
from loadtest.bench.statistics import Spread, median_ratio

CALLERS, REQUESTS, OUTPUT = 16, 48, 128
PAIRS, FULL_PAIRS = 6, 12


def reload(rig: Rig, found: JsonDict) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with quiet():
            rig.loaded().pair.drafter.save_pretrained(folder)
        loader = _Loader(rig, Path(folder))
        engine = rig.engine(OFF)
        rates: dict[bool, list[float]] = {False: [], True: []}
        try:
            callers, count, output = (CALLERS, REQUESTS, OUTPUT) if rig.on_gpu else (2, 4, 12)
            for pair in range(-1, rig.session.repetitions(PAIRS, FULL_PAIRS)):  # the first warms up
                asks = rig.asks(count, prompt=(64, 64), output=(output, output), seed=pair + 1)
                for loading in (False, True) if pair % 2 else (True, False):
                    with loader if loading else nullcontext():
                        done = engine.run(asks, callers, tenant=f"reload {pair} {loading}")
                    if pair >= 0:
                        rates[loading].append(done.rate)
        finally:
            engine.close()
        if loader.problem is not None:
            raise loader.problem
    ratio = median_ratio(rates[True], rates[False])
    found |= {
        "callers": callers,
        "loads": loader.loads,
        "weights_bytes": loader.size,
        "load_seconds": loader.seconds / loader.loads if loader.loads else None,
        "tokens_per_second": {
            "alone": report.as_json(Spread.of(rates[False])),
            "beside loading": report.as_json(Spread.of(rates[True])),
        },
        "dip": None if ratio is None or not rig.on_gpu else 1 - ratio,
    }


class _Loader:
    """While entered, loads the folder's model in a thread, one copy after the other."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self._rig, self._folder = rig, folder
        self._config = read_config(folder)
        self.size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        self.loads, self.seconds = 0, 0.0
        self.problem: Exception | None = None

    def __enter__(self) -> None:
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        self._thread.join()

    def _run(self) -> None:
        rig = self._rig
        aside = torch.cuda.stream(torch.cuda.Stream(rig.device)) if rig.on_gpu else nullcontext()
        try:
            with aside:
                while not self._enough.is_set():
                    started = time.perf_counter()
                    load_module(self._folder, self._config, rig.dtype, rig.device, "sdpa", streamed=True)
                    if rig.on_gpu:
                        torch.cuda.current_stream(rig.device).synchronize()
                    self.seconds += time.perf_counter() - started
                    self.loads += 1
        except Exception as error:
            self.problem = error

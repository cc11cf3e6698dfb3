"""When passes are recorded, kept and replayed; the recording itself needs a GPU."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import pytest
import torch

from covey.gpu import graphs as module
from covey.gpu.graphs import Graphs


class Recording(Graphs):
    """Records without a GPU: a replay counts."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self._able = True
        self.made: list[Hashable] = []
        self.replays: list[Hashable] = []
        self.fails = False

    def _record(self, key: Hashable, work: Callable[[], torch.Tensor]) -> module._Recorded:
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.made.append(key)
        return module._Recorded(lambda: self.replays.append(key), work())


def runs(graphs: Recording, *keys: Hashable) -> list[float]:
    return [float(graphs.run(key, lambda key=key: torch.tensor(float(hash(key))))) for key in keys]  # type: ignore[misc]


def test_what_comes_again_is_recorded_and_then_replayed() -> None:
    graphs = Recording()
    assert runs(graphs, 1, 2, 1, 1, 3, 1) == [1, 2, 1, 1, 3, 1]
    assert graphs.made == [1]
    assert graphs.replays == [1, 1, 1]
    assert len(graphs) == 1


def test_a_device_that_cannot_record_runs_everything(caplog: pytest.LogCaptureFixture) -> None:
    graphs = Recording()
    graphs.fails = True
    assert runs(graphs, 1, 1, 1, 2, 2) == [1, 1, 1, 2, 2]
    assert len([each for each in caplog.records if "cannot record passes" in each.message]) == 1
    assert not graphs.replays


def test_a_cpu_records_nothing() -> None:
    graphs = Graphs(torch.device("cpu"))
    assert [float(graphs.run(1, lambda: torch.tensor(5.0))) for _ in range(3)] == [5, 5, 5]
    assert len(graphs) == 0

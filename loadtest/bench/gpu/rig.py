"""Owns the subjects of the bench `gpu`: a device, a synthetic pair in its memory, and engines that share it.

The pair is built on the device (`covey_training.aligned`), never on a disk. One target and one drafter serve all
engines, on one CUDA stream: an engine asks them in turns anyway, and two engines never run at the same time.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from covey.contracts.errors import CoveyError, SettingError
from covey.contracts.profile import DrafterSettings, Profile, SchedulerSettings, SpeculationSettings, TargetSettings
from covey.contracts.types import JsonDict
from covey.drafters.neural import NeuralDrafter
from covey.drafters.opening import PASS_TOKENS, torch_stepper
from covey.models.loading import choose_dtype
from covey.models.model import PagedModel
from covey.models.modules import Modules
from covey.requests.rounds import RoundRecord
from covey.runtimes.opening import RECORDED_ROWS, Model
from covey.target.runner import TargetRunner
from covey_training.aligned import Pair, build, default_layers, shape
from covey_training.aligned.shapes import SPECIAL
from covey_training.aligned.weights import first_layers
from loadtest.bench.in_process import InProcess
from loadtest.bench.session import Session
from loadtest.bench.work import Ask

BLOCK_SIZE = 16
DRAFTER = "draft_aligned"
OFF = "off"
DEADLINE_MS = 60_000  # the first draft of a kind records its passes
SIZE, SIZE_OFF_GPU = "7b", "tiny"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Capacity:
    """The load for which models are sized."""

    running: int  # requests at once
    blocks: int  # of KV memory
    budget: int  # tokens of a pass


ROOM, ROOM_OFF_GPU = Capacity(128, 8192, 1024), Capacity(16, 512, 128)


@dataclass(frozen=True)
class Loaded:
    """Holds the pair, and the models that run it. The pair's own modules stay as they are."""

    pair: Pair
    target: Model
    drafter: Model
    runner: TargetRunner
    draft: NeuralDrafter


class Rig:
    """Loads the pair once, when it is first wanted; a failed load is not tried again."""

    def __init__(self, session: Session) -> None:
        wanted = session.wanted
        self.session = session
        self.device = find_device(wanted.device)
        self.on_gpu = self.device.type == "cuda"
        self.small = not self.on_gpu or wanted.quick
        self.room = ROOM if self.on_gpu else ROOM_OFF_GPU
        self.size = wanted.shape or (SIZE if self.on_gpu else SIZE_OFF_GPU)
        self.config: Any = shape(self.size)
        self.layers = int(self.config.num_hidden_layers)
        self.dtype = choose_dtype("auto", self.device) if self.on_gpu else torch.float32
        self.results: dict[str, JsonDict] = {}
        self._loaded: Loaded | None = None
        self._broken = ""
        if not self.on_gpu:
            torch.set_num_threads(1)  # passes this narrow take longer with two

    def loaded(self) -> Loaded:
        if self._broken:
            raise CoveyError(self._broken)
        if self._loaded is None:
            try:
                self._loaded = self._load()
            except Exception as error:
                self._broken = f"the pair could not be loaded: {type(error).__name__}: {error}"
                raise
        return self._loaded

    def engine(self, policy: str, *, observe: Callable[[RoundRecord], None] | None = None) -> InProcess:
        """Return a new engine, which keeps the state of its policy, over the target and drafter that all
        share."""
        loaded = self.loaded()
        return InProcess(
            policy,
            self.profile(policy),
            loaded.runner,
            drafters={} if policy == OFF else {DRAFTER: loaded.draft},
            observe=observe,
        )

    def profile(self, policy: str) -> Profile:
        room = self.room
        return Profile(
            "gpu",
            target=TargetSettings(threads=0 if self.on_gpu else 1),
            scheduler=SchedulerSettings(max_running=room.running, max_waiting=4096, token_budget=room.budget),
            speculation=SpeculationSettings(policy=policy, drafters=(DRAFTER,), draft_deadline_ms=DEADLINE_MS),
        )

    def asks(self, count: int, *, prompt: tuple[int, int], output: tuple[int, int], seed: int) -> list[Ask]:
        """Return prompts of random ids; lengths spread evenly on a logarithmic scale between the two of each pair."""
        rng = random.Random(seed)

        def length(low: int, high: int) -> int:
            share: float = rng.random()
            return round(float(low * (high / low) ** share))

        def one(index: int) -> Ask:
            ids = rng.choices(range(SPECIAL, self.config.vocab_size), k=length(*prompt))
            return Ask("", length(*output), 1.0, seed * 100_003 + index, ids=tuple(ids))

        return [one(index) for index in range(count)]

    def _load(self) -> Loaded:
        wanted = self.session.wanted
        with self.session.status(f"building the pair {self.size}"):
            layers = default_layers(self.config)
            pair = build(self.config, layers, wanted.agreement, wanted.seed, self.device, self.dtype)
        with self.session.status("loading the pair"):
            target = self._model(first_layers(pair.target, self.layers), "target", self.room.budget)
            drafter = self._model(first_layers(pair.target, layers), DRAFTER, PASS_TOKENS)
            depth = SpeculationSettings().max_depth
            for model, deepest in ((target, depth), (drafter, 0)):
                if not isinstance(model, PagedModel) and self.on_gpu:
                    model.record(RECORDED_ROWS, 1 + deepest)  # as at any load
            settings = DrafterSettings(device="cuda" if self.on_gpu else "cpu", kv_blocks=self.room.blocks)
            draft = NeuralDrafter(drafter, torch_stepper(drafter, depth), settings, name=DRAFTER)
            draft.warm_up()
        self.session.notes["pair"] = {
            "size": self.size,
            "layers": [self.layers, layers],
            "parameters": sum(parameter.numel() for parameter in pair.target.parameters()),
            "damping": pair.damping,
            "agreement": pair.measured.coupled,
            "agreement_greedy": pair.measured.greedy,
            "entropy_bits": pair.measured.entropy,
        }
        runner = TargetRunner(
            target,
            blocks=target.blocks,
            block_size=target.block_size,
            reuse=False,  # engines of one memory must not find each other's state
            name="target",
            folder="",
            run_ahead=True,
        )
        return Loaded(pair, target, drafter, runner, draft)

    def _model(self, module: Any, name: str, most: int) -> Model:
        """Return the model that runs a module. The module is taken apart; the parts that it shares with others stay."""
        modules = Modules.of(module, name)
        if not self.on_gpu:
            return PagedModel(modules, blocks=self.room.blocks, numerics="fast", max_pass_tokens=most)
        from covey.gpu.model import DeviceModel

        return DeviceModel(
            modules, blocks=self.room.blocks, block_size=BLOCK_SIZE, numerics="fast", max_pass_tokens=most
        )


def find_device(name: str) -> torch.device:
    """Return the device. Raises SettingError."""
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SettingError("no GPU was found; --device cpu runs every part in plain PyTorch, without a GPU's numbers")
    return torch.device("cuda", torch.cuda.current_device())

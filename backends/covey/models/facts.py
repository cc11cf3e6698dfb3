"""The facts that an earlier load found about a model, so that the next one needs neither its modules nor transformers,
whose import takes seconds.

Kept of a model on a CPU whose short pass (`fuse.py`) gave what its modules gave (`modules.py`), and whose files hold
what the modules held: everything that the pass needs and that is not in the files. The next load builds the pass from
the files, and takes it only if it then gives the same bits for the same text.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from covey.contracts.errors import SettingError
from covey.models.identity import of_model
from covey.models.loading import choose_device, choose_dtype
from covey.models.modules import AttentionSetting, Modules
from covey.models.refusals import FAMILIES, weight_files
from covey.models.verdicts import keep
from covey.process.private import kept_folder
from covey.text.model_folder import read_object

log = logging.getLogger(__name__)

_ROTARY = "model.rotary_emb"
_ACTIVATION = "model.layers.0.mlp.act_fn"


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about one model in one data type."""

    config: dict[str, Any]  # the file as transformers completes it
    tensors: dict[str, list[int]]  # shapes of the modules' parameters by name
    tied: bool  # the head is the embedding
    settings: tuple[AttentionSetting, ...]  # one for each layer
    eps: float  # the same in all norms
    frequencies: list[float]  # the rotary embedding's
    factor: float  # its sines and cosines are scaled by it
    result: str  # digest of what the short pass made of a text


@dataclass(frozen=True, slots=True)
class Rotary:
    """The result of transformers' rotary embeddings where frequencies do not change with length."""

    frequencies: torch.Tensor
    factor: float

    def __call__(self, like: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = positions[..., None].float() * self.frequencies
        both = torch.cat((angles, angles), -1)
        return (both.cos() * self.factor).to(like.dtype), (both.sin() * self.factor).to(like.dtype)


@contextmanager
def turn(folder: str | Path, dtype: str, device: str) -> Iterator[bool]:
    """Yield whether this process, the first of several, is to examine the model in a folder. One process examines at a
    time: the others, whose models it may examine too, wait for it rather than import transformers beside it."""
    path = _place(folder, dtype, device)
    first = False
    with ExitStack() as held:
        if path is not None and not path.is_file() and _may_be_short(Path(folder)):
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                fcntl.flock(held.enter_context((path.parent / "lock").open("a")), fcntl.LOCK_EX)
                first = not path.is_file()
            except OSError as error:
                log.warning("nothing can be kept in %s: %s", path.parent, error)
        if not first:
            held.close()
        yield first


def find(folder: str | Path, dtype: str, device: str) -> Facts | None:
    """Return the facts about the model in a folder as it is now, on this machine and in this process; None if there are
    none."""
    path = _place(folder, dtype, device)
    if path is None or not path.is_file():
        return None
    try:
        kept = json.loads(path.read_text())
        content = kept["known"]
        if kept["digest"] != _digest(content):
            raise ValueError("its digest is another")
        return Facts(**content | {"settings": tuple(AttentionSetting(**each) for each in content["settings"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s is not what was known of a model (%s): it is examined again", path, error)
        return None


def modules(folder: Path, facts: Facts, dtype: str) -> Modules:
    """Return what the model's modules would say of themselves."""
    device = torch.device("cpu")
    return Modules(folder, SimpleNamespace(**facts.config), None, choose_dtype(dtype, device), device)


def parts(folder: Path, facts: Facts, dtype: torch.dtype) -> dict[str, Any]:
    """Return, from the files, what the short pass reads off the modules, by their names. Raises KeyError where the
    files are not as they were."""
    named: dict[str, Any] = {}
    for name, tensor in _stored(folder, facts, dtype):
        path, _, leaf = name.rpartition(".")
        part = named.setdefault(path, SimpleNamespace(bias=None, variance_epsilon=facts.eps))
        setattr(part, leaf, tensor)
    embedding = named["model.embed_tokens"]
    embedding.weight = embedding.weight.clone()  # the pass keeps it, and it may be the file's own memory
    if facts.tied:
        named["lm_head"] = embedding
    named[_ROTARY] = _rotary(facts)
    named[_ACTIVATION] = torch.nn.SiLU()
    return named


def _stored(folder: Path, facts: Facts, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(str(path), "pt")) for path in weight_files(folder)]
        where = {name: file for file in files for name in file.keys()}  # noqa: SIM118  (not a mapping)
        for name, shape in facts.tensors.items():
            tensor = where[name].get_tensor(name)
            if list(tensor.shape) != shape:
                raise KeyError(f"{name} of another shape")
            yield name, tensor.to(dtype)


def _rotary(facts: Facts) -> Rotary:
    return Rotary(torch.tensor(facts.frequencies, dtype=torch.float32), facts.factor)


def learn(modules: Modules, settings: list[AttentionSetting], result: torch.Tensor) -> None:
    """Keep what `find` finds, where the files hold what the examined modules hold; `result` is that of the short pass
    over a text."""
    path = _path(modules.folder, modules.dtype)
    if path is None:
        return
    try:
        facts = _facts_of(modules, settings, digest_of(result))
        reason = next(_differences(modules, facts), None)
    except (AttributeError, KeyError, SettingError, SafetensorError, OSError) as error:
        reason = f"{type(error).__name__}: {error}"
    if reason is not None:
        log.info("%s: every load needs transformers: %s", modules.folder, reason)
        return
    content = asdict(facts)
    keep(path, {"known": content, "digest": _digest(content)})


def _facts_of(modules: Modules, settings: list[AttentionSetting], result: str) -> Facts:
    module = modules.module
    rotary = module.get_submodule(_ROTARY)
    return Facts(
        config=modules.described(),
        tensors={name: list(tensor.shape) for name, tensor in module.named_parameters()},
        tied=module.get_output_embeddings().weight is module.get_input_embeddings().weight,
        settings=tuple(settings),
        eps=float(module.model.norm.variance_epsilon),
        frequencies=rotary.inv_freq.tolist(),
        factor=float(rotary.attention_scaling),
        result=result,
    )


def digest_of(result: torch.Tensor) -> str:
    return hashlib.sha256(result.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def _differences(modules: Modules, facts: Facts) -> Iterator[str]:
    """Yield each difference between the modules and what the files and the kept facts say, as a sentence."""
    module = modules.module
    if facts.config.get("hidden_act") != "silu":
        yield "its activation is not SiLU"
    if any(getattr(part, "variance_epsilon", facts.eps) != facts.eps for part in module.modules()):
        yield "its norms differ"
    at = torch.arange(modules.max_positions)[None]
    for dtype in (modules.dtype, torch.float32):
        like = torch.ones(1, dtype=dtype)
        if not all(map(torch.equal, _rotary(facts)(like, at), module.get_submodule(_ROTARY)(like, at))):
            yield "its rotary embedding is of a kind of its own"
    held = dict(module.named_parameters())
    for name, tensor in _stored(modules.folder, facts, modules.dtype):
        if not torch.equal(tensor, held[name]):
            yield f"{name} is not what the files have"


def _may_be_short(folder: Path) -> bool:
    try:
        return read_object(folder / "config.json").get("model_type") in list(FAMILIES)
    except SettingError:
        return False  # whoever reads it says so


def _place(folder: str | Path, dtype: str, device: str) -> Path | None:
    chosen = choose_device(device)
    return _path(Path(folder), choose_dtype(dtype, chosen)) if chosen.type == "cpu" else None


def _path(folder: Path, dtype: torch.dtype) -> Path | None:
    kept = kept_folder("models")
    if kept is None or not (folder / "config.json").is_file():
        return None
    names = sorted(path.name for path in folder.iterdir())
    return kept / f"{of_model(folder, [version('transformers'), version('safetensors'), str(dtype), names])}.json"


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()

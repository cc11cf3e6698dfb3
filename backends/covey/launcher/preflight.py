"""Refuses hopeless starts before tritonserver runs. Every refusal is one line that says what to change."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import resource
import socket
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey.contracts import profile, registry
from covey.contracts.errors import SettingError, UnsupportedModel
from covey.launcher.errors import StartError
from covey.launcher.options import FREE, Options
from covey.models import comparison, dtypes, heads, refusals, stored
from covey.models.native import architecture, compiled
from covey.process.footprint import available
from covey.runtimes import budget
from covey.runtimes.choice import may_have_gpu
from covey.text import vocabulary
from covey.text.model_folder import has_file
from covey.text.tokenization import load_tokenizer

PORTS = {"http_port": "HTTP_PORT", "grpc_port": "GRPC_PORT", "metrics_port": "METRICS_PORT"}
PARAMETER = re.compile(r'key\s*:\s*"(\w+)"\s*,?\s*value\s*:?\s*\{\s*string_value\s*:\s*"([^"]*)"')  # in config.pbtxt
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
TEXT_MODELS = frozenset({"tokenize", "detokenize", "ensemble"})  # useless without a tokenizer

FILES, FILES_OF_MODEL = 128, 4  # tritonserver opens 79 with 14 models, and one for each caller's connection
ADDRESSES = 4 << 30  # tritonserver takes 2.7 GiB with 14 models on two cores, and a process with PyTorch as much
LIMITS = {resource.RLIMIT_NOFILE: "open files (ulimit -n)", resource.RLIMIT_AS: "bytes of address space (ulimit -v)"}


def exposure(options: Options) -> None:
    """Refuse to listen to other machines without a secret from the user: loading a model can run code."""
    if options.admin_secret:
        return
    try:
        addresses = socket.getaddrinfo(options.host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror:
        return  # with_ports refuses it
    if not all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in addresses):
        raise StartError(
            f"host {options.host!r} is open to other machines, and clients that load models can run code here: "
            "set COVEY_ADMIN_SECRET to a random string, or listen on 127.0.0.1"
        )


def with_ports(options: Options) -> Options:
    """Return the options with a port for every FREE one of Triton's; refuses ports in use."""
    return replace(options, **chosen(options, options.host, PORTS))


def chosen(options: Options, host: str, names: Mapping[str, str], others: Collection[int] = ()) -> dict[str, Any]:
    """Return these ports of the options with every FREE one chosen, outside `others`. Raises StartError for all ports
    in use, with the variables that choose others."""
    found: dict[str, Any] = {}  # fields of Options
    held: list[socket.socket] = []
    problems: list[str] = []
    try:
        for name in sorted(names, key=lambda name: bool(getattr(options, name) == FREE)):  # hold the named ones first
            port, taken = int(getattr(options, name)), {*others, *found.values()} - {FREE}
            if not 0 <= port <= 65535 or port in taken:
                raise StartError(f"{name}: got {port}, allowed: 0 to 65535, different from this server's other ports")
            try:
                held.append(listen(host, port, names[name]))
            except StartError as error:
                problems.append(str(error))
                continue
            while held[-1].getsockname()[1] in taken:  # chosen for Triton, which does not listen yet
                held.append(listen(host, port, names[name]))
            found[name] = held[-1].getsockname()[1]
    finally:
        for listener in held:
            listener.close()
    if problems:
        raise StartError("; ".join(dict.fromkeys(problems)))
    return found


def listen(host: str, port: int, variable: str) -> socket.socket:
    """Return a socket that holds the port; raises StartError if it is in use."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise StartError(f"cannot listen on host {host!r}: {error.strerror}") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1)
    except OSError as error:
        listener.close()
        raise StartError(
            f"port {port} on {host} is not free ({error.strerror}): choose another by {variable}="
        ) from None
    return listener


def models(options: Options) -> tuple[str, ...]:
    """Return the models to load. Raises StartError if one has no folder."""
    repository = options.repository_folder()
    if not repository.is_dir():
        raise StartError(f"{repository} is not a model repository: give --model-repository or COVEY_MODEL_REPOSITORY")
    wanted = options.models if options.models is not None else options.deployment().models
    missing = [name for name in wanted if not (repository / name / "config.pbtxt").is_file()]
    if missing:
        known = ", ".join(sorted(path.parent.name for path in repository.glob("*/config.pbtxt")))
        raise StartError(f"model {missing[0]!r} has no config.pbtxt in {repository}, which has {known or 'none'}")
    return wanted


def limits(wanted: tuple[str, ...]) -> None:
    """Raise StartError if a process may not have the open files or address space that tritonserver needs. tritonserver
    itself fails silently, or crashes."""
    _check_limit(resource.RLIMIT_NOFILE, FILES + FILES_OF_MODEL * len(wanted))
    _check_limit(resource.RLIMIT_AS, ADDRESSES)


def _check_limit(kind: int, needed: int) -> None:
    most, _ = resource.getrlimit(kind)
    if most != resource.RLIM_INFINITY and most < needed:
        raise StartError(f"a process may have only {most} {LIMITS[kind]}; raise the limit to {needed} or more")


def weights(options: Options, wanted: tuple[str, ...]) -> None:
    """Refuse a target or a named drafter whose folder rules it out."""
    target = options.deployment().target
    if target.emulated:
        if options.model or options.drafter:
            raise StartError(f"profile {options.profile} has an emulated target, which takes no MODEL and no DRAFTER")
        return
    if options.drafter and not refusals.holds_head(Path(options.drafter)):
        _servable(Path(options.drafter))
    folder = target_folder(options)
    for name, drafter in _drafter_folders(options, wanted).items():
        try:
            if refusals.holds_head(drafter):
                heads.read(drafter, folder)
                _check_states(options, name)
            else:
                _servable(drafter)
        except SettingError as error:
            raise StartError(f"{name}: {error}") from None
    if not (options.model or target.folder) and ("target" not in wanted or not has_file(folder / "config.json")):
        return  # no target, or another backend's
    _servable(folder)
    if not any(has_file(folder / name) for name in TOKENIZERS) and not TEXT_MODELS.isdisjoint(wanted):
        without = ", ".join(name for name in wanted if name in TEXT_MODELS)
        raise StartError(
            f"{folder}: no tokenizer.json; copy the tokenizer's files there, or, to serve token ids alone, take "
            f"{without} out of models of profile {options.profile}"
        )
    _same_vocabulary(folder)


def memory(options: Options, wanted: tuple[str, ...]) -> int:
    """Return the room in tokens for each KV pool without a size in the profile; 0 if there is none. Raises StartError
    if torch sees no GPU that the profile needs, or models do not fit into memory."""
    settings, drafters = options.deployment(), _drafter_folders(options, wanted)
    devices = {"target.device": settings.target.device} if _has_target(options, wanted) else {}
    if drafters:
        devices["drafter.device"] = settings.drafter.device
    if not devices:
        return 0
    gpu = budget.Gpu() if set(devices.values()) == {"cpu"} else budget.gpu_seen_apart()
    asking = [name for name, device in devices.items() if device == "cuda"]
    if asking and not gpu.free:
        raise StartError(
            f"profile {options.profile}: {', '.join(asking)}: got 'cuda', but torch sees no GPU here: start on a "
            "machine with one and a CUDA build of torch, or take auto or cpu"
        )
    parts = parts_of(options, wanted, gpu)
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    addresses = available() if most == resource.RLIM_INFINITY else most - ADDRESSES
    try:
        return budget.tokens(parts, {budget.CPU: min(available(), addresses), budget.GPU: gpu.free}, settings)
    except SettingError as error:
        raise StartError(f"profile {options.profile}: {error}") from None


def parts_of(options: Options, wanted: tuple[str, ...], gpu: budget.Gpu) -> list[budget.Part]:
    """Return what the models take of memory, the target first, if there is one."""
    settings, folder = options.deployment(), target_folder(options)
    drafters, parts = _drafter_folders(options, wanted), list[budget.Part]()
    if _has_target(options, wanted):
        head = drafters.get(settings.target.head)
        product = heads.read(head, folder).fc.shape if head else budget.NO_PRODUCT
        part = budget.of_target(folder, settings.target, gpu, product)
        if head and settings.drafts_ahead and part.device == budget.CPU:
            part = budget.with_own_head(part, budget.of_drafter("own head", head, settings.drafter, gpu, folder))
        parts.append(part)
    for name, own in drafters.items():
        parts.append(budget.of_drafter(name, own, settings.drafter, gpu, folder if refusals.holds_head(own) else None))
    return parts


def _has_target(options: Options, wanted: tuple[str, ...]) -> bool:
    """Return whether a target's weights are loaded. An emulated one has none, nor has another backend's."""
    has_files = "target" in wanted and has_file(target_folder(options) / "config.json")
    return has_files and not options.deployment().target.emulated


def _drafter_folders(options: Options, wanted: tuple[str, ...]) -> dict[str, Path]:
    """Return the folders of the drafters whose weights are loaded."""
    repository, settings = options.repository_folder(), options.deployment()
    found: dict[str, Path] = {}
    if settings.target.emulated:
        return found
    for name in wanted:
        text = re.sub(r"#.*", "", (repository / name / "config.pbtxt").read_text(encoding="utf-8"))
        parameters = dict(PARAMETER.findall(text))
        if 'backend: "drafter"' in text and registry.has_weights(parameters.get("kind")):
            folder = settings.drafter.folder_of(name) or parameters.get("folder") or repository / name / "1"
            found[name] = Path(folder)
    return found


def _check_states(options: Options, head: str) -> None:
    """Refuse a head whose target does not ship its states."""
    if options.deployment().target.head != head:
        raise SettingError(f"a head drafts by the target's states: say [target] head = {head!r} in the profile")


def _servable(folder: Path) -> None:
    """Refuse a model that no runtime can serve."""
    config = refusals.servable(folder)
    files = refusals.weight_files(folder)
    found = stored.tensors(files)
    stored.check(folder, found)
    if len(files) > 1:
        stored.check_index(folder / "model.safetensors.index.json", found)
    comparison.check(folder, config, found)
    with contextlib.suppress(UnsupportedModel):  # PyTorch may serve it
        architecture.read(folder)


def _same_vocabulary(folder: Path) -> None:
    """Refuse a tokenizer that cannot be read or that has more tokens than the model. Added tokens may exceed the
    model's vocabulary; a request with one is refused."""
    tokenizer = load_tokenizer(folder)
    words, known = (
        0 if tokenizer is None else tokenizer.get_vocab_size(with_added_tokens=False),
        vocabulary.size(folder),
    )
    if known != vocabulary.UNKNOWN and words > known:
        raise StartError(f"{folder}: its tokenizer has {words} tokens, its model {known}: copy both from one model")


def left_out(options: Options, wanted: tuple[str, ...]) -> dict[str, str]:
    """Return the models to leave out, and why: bundled drafters of the default profile whose tokens differ from the
    target's. Named drafters that do not fit are refused instead."""
    target, misfits = target_folder(options), {}
    for name, folder in _drafter_folders(options, wanted).items():
        misfit = vocabulary.misfit(folder, target)
        if not misfit and refusals.holds_head(folder):
            try:
                heads.read(folder, target)
            except SettingError as error:
                misfit = f"other states: {error}"
        if misfit:
            misfits[name] = misfit
    if options.drafter and (entry := options.drafter_entry()) in misfits:
        raise StartError(
            f"{options.drafter} cannot draft for this target: it has {misfits[entry]}; make one that fits by "
            f"python -m covey_training drafter --target {target}"
        )
    if misfits and (options.profile != profile.DEFAULT_PROFILE or options.models is not None):
        name, misfit = next(iter(misfits.items()))
        raise StartError(
            f"{', '.join(misfits)} cannot draft for this target ({name} has {misfit}): take what does not fit out of "
            f"models and speculation.drafters of profile {options.profile}"
        )
    return misfits


def variants(options: Options, wanted: tuple[str, ...]) -> set[str]:
    """Return the variants of the native runtime's code that these models need on this CPU, as far as files tell."""
    settings, own = options.deployment(), target_folder(options)
    found: set[str] = set()
    if may_have_gpu():
        return found
    if _has_target(options, wanted):
        with suppress(SettingError):  # a family that PyTorch computes
            found.add(compiled.variant_of(architecture.read(own), dtypes.on_cpu(settings.target.dtype, own)))
    for folder in _drafter_folders(options, wanted).values():
        with suppress(SettingError):
            found.add(compiled.variant_of(architecture.read(folder), settings.drafter.dtype))
    return found


def target_folder(options: Options) -> Path:
    """Return the folder of the target's files, which may be missing."""
    named = options.model or options.deployment().target.folder
    return Path(named) if named else options.repository_folder() / "target" / "1"

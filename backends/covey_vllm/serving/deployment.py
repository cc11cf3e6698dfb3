"""A profile in vLLM's words: the arguments of its engine, Covey's table for the proposer, and its environment.

A setting that nothing of it reads is refused by name, unless it stands as it is by default.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from covey.contracts.errors import SettingError
from covey.contracts.profile import VLLM, VLLM_PYTHON_VARIABLE, Profile, TargetSettings
from covey.contracts.types import JsonDict
from covey.planner.policies import fixed_depth
from covey_vllm import settings

# What is read of each section. Of those that the proposer is given it reads or refuses each setting itself.
READ: Mapping[str, tuple[str, ...]] = {
    "target": (
        *("kind", "folder", "dtype", "tensor_parallel", "threads"),
        *("block_size", "kv_memory_mb", "kv_blocks"),
    ),
    "scheduler": ("max_running", "max_waiting", "token_budget"),
    "tenants": ("priorities",),
    "slo": (),
    "memory": (),
    "emulated": (),
}
SIZES = ("kv_cache_memory_bytes", "gpu_memory_utilization", "num_gpu_blocks_override")  # of memory, in vLLM's words


@dataclass(frozen=True, slots=True)
class Deployment:
    """The values that vLLM's process is started with. `drafters` says by name where each is."""

    python: str
    folder: Path
    arguments: JsonDict
    drafters: Mapping[str, str]
    depth: int  # the deepest draft
    environment: dict[str, str]

    @classmethod
    def of(cls, profile: Profile, repository: Path) -> Deployment:
        """Raises SettingError. `repository` is the model repository, whose target is served where none is named."""
        _check_unread(profile)
        python = profile.vllm.python or os.environ.get(VLLM_PYTHON_VARIABLE, "")
        if not os.access(python, os.X_OK):
            raise SettingError(
                f"vllm.python: got {python!r}, allowed: the Python of an environment that has vLLM, here or in "
                f"{VLLM_PYTHON_VARIABLE}"
            )
        folder = Path(profile.target.folder or repository / "target" / "1").resolve()
        depth = fixed_depth(profile.speculation.policy) or profile.speculation.max_depth
        drafters = _drafters(profile, repository)
        table = {"drafters": drafters, **_tables(profile)}
        settings.checked(table, depth)
        target, scheduler, own = profile.target, profile.scheduler, _own(profile)
        arguments: JsonDict = {
            "model": str(folder),
            "dtype": target.dtype,
            "tensor_parallel_size": target.tensor_parallel,
            "block_size": target.block_size,
            "enable_prefix_caching": True,
            "max_num_seqs": scheduler.max_running,
            "max_num_batched_tokens": scheduler.token_budget,
            **({} if own.keys() & set(SIZES) else _memory(target)),
            "scheduling_policy": "priority",
            "structured_outputs_config": {
                "backend": "guidance"
            },  # which reads grammars as Covey's compiler writes them
            "worker_extension_cls": "covey_vllm.extension.Extension",
            "speculative_config": {
                "method": "custom_class",
                "model": "covey_vllm.CoveyProposer",
                "num_speculative_tokens": depth,
            },
            "additional_config": {"covey": table},
            **own,
        }
        return cls(python, folder, arguments, drafters, depth, _environment(target))


def _check_unread(profile: Profile) -> None:
    for section, read in READ.items():
        for name, value in _changed(profile, section).items():
            if name not in read:
                raise SettingError(
                    f"profile {profile.name}: {section}.{name}: got {value!r}, allowed with a target of kind {VLLM}: "
                    "to leave it out"
                )
    if profile.speculation.drafters:
        raise SettingError(f"profile {profile.name}: speculation.drafters: a target of kind {VLLM} has vllm.drafters")


def _changed(profile: Profile, section: str) -> JsonDict:
    """Return the section's settings that are not as they are by default."""
    own = getattr(profile, section)
    usual = type(own)()
    values = {field.name: getattr(own, field.name) for field in fields(own)}
    return {name: value for name, value in values.items() if value != getattr(usual, name)}


def _tables(profile: Profile) -> JsonDict:
    return {
        section: {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in _changed(profile, section).items()
        }
        for section in settings.TABLES
    }


def _drafters(profile: Profile, repository: Path) -> dict[str, str]:
    found = {}
    for entry in profile.vllm.drafters:
        name, _, source = entry.partition("=")
        inside = repository / source
        found[name] = str(inside.resolve()) if inside.is_dir() else source
    return found


def _own(profile: Profile) -> JsonDict:
    """Return the engine's arguments that the profile has in vLLM's own words."""
    found = {}
    for entry in profile.vllm.arguments:
        name, _, value = entry.partition("=")
        try:
            found[name] = json.loads(value)
        except ValueError as error:
            raise SettingError(f"vllm.arguments: got {entry!r}, allowed: NAME=VALUE in JSON ({error})") from None
    return found


def _memory(target: TargetSettings) -> JsonDict:
    if target.kv_blocks:
        return {"num_gpu_blocks_override": target.kv_blocks}
    return {"kv_cache_memory_bytes": target.kv_memory_mb << 20}


def _environment(target: TargetSettings) -> dict[str, str]:
    """Return the environment of settings that vLLM and numpy take from there alone. vLLM's build for CPUs computes on
    the processors that it is told; several threads of a library would wait for one another there."""
    cores = sorted(os.sched_getaffinity(0))[: target.threads]
    bound = {"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores))} if cores else {}
    usual = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return usual | bound

"""The settings for Covey in vLLM's configuration: the table `covey` of `additional_config`.

    {"drafters": {"small": "/models/small", "suffix": "suffix", "far": "10.0.0.7:8001/draft_general"},
     "speculation": {"policy": "adaptive"}, "drafter": {"device": "cpu"}, "star": {"secret": "/etc/covey/secret"}}

Tables other than `drafters` are those of a profile (`covey.contracts.profile`), as far as vLLM leaves their settings to
its proposer. Other settings are refused by name. This module reads vLLM's configuration only by attributes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covey.contracts import profile
from covey.contracts.errors import SettingError
from covey.contracts.profile import Profile
from covey.contracts.types import JsonDict

WHERE = "additional_config.covey"
SUFFIX = "suffix"  # the lookup that keeps the texts of ended requests
LOOKUPS = ("ngram", SUFFIX)
NEURAL, REMOTE = "neural", "remote"
DRAFTERS = {SUFFIX: SUFFIX}  # the default
TABLES = ("speculation", "drafter", "star")
PLACE = re.compile(r"[^/\s]+:\d+/[\w.-]+")
NAME = re.compile(r"[\w.-]+")
# Settings of these tables that the proposer cannot follow, and why.
REFUSED = {
    "speculation.width": "vLLM verifies only chains",
    "speculation.adaserve": "vLLM's requests have no latency objectives",
    "speculation.lookup": f"lookups are drafters, named in {WHERE}.drafters",
    "speculation.drafters": f"drafters are named in {WHERE}.drafters",
    "speculation.costs": "step times are learnt from vLLM's own steps",
    "drafter.folders": f"folders are named in {WHERE}.drafters",
    "star.callers": "this process drafts for no other server",
    "star.servers": f"servers are named in {WHERE}.drafters",
}
KV_MB = 32  # of each drafter: what is free here is vLLM's
NEEDS_TARGET = "ucb-bd"  # drafter policies that compare the drafter's distributions with the target's


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the proposer."""

    profile: Profile
    drafters: Mapping[str, str]  # by name: ngram, suffix, a folder, or HOST:PORT/MODEL of another server
    target: str  # the target's folder, or its name on the hub
    vocab_size: int
    limit: int  # the most tokens of a text
    budget: int  # the most tokens of a step
    max_rows: int
    depth: int  # num_speculative_tokens
    ends: tuple[int, ...]  # tokens that usually end a request
    leads: bool  # vLLM takes this process's drafts; it drops those of other ranks

    @classmethod
    def of(cls, config: Any) -> Settings:
        """Return the settings in vLLM's `config`. Raises SettingError."""
        depth = int(config.speculative_config.num_speculative_tokens)
        given = config.additional_config
        profile, drafters = checked(given.get("covey", {}) if isinstance(given, Mapping) else {}, depth)
        parallel, model = config.parallel_config, config.model_config
        return cls(
            profile=profile,
            drafters=drafters,
            target=model.model,
            vocab_size=model.get_vocab_size(),
            limit=model.max_model_len,
            budget=config.scheduler_config.max_num_batched_tokens,
            max_rows=config.scheduler_config.max_num_seqs,
            depth=depth,
            ends=_ends(model.hf_config),
            leads=parallel.rank % parallel.tensor_parallel_size == 0,
        )

    @property
    def folder(self) -> Path:
        """Return the target's folder; for a name on the hub, vLLM's downloaded copy."""
        if os.path.isdir(self.target):
            return Path(self.target)
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(self.target, local_files_only=True))

    def kind(self, name: str) -> str:
        """Return the drafter's kind as in `covey.contracts.registry`."""
        source = self.drafters[name]
        if source in LOOKUPS:
            return source
        return NEURAL if os.path.isdir(source) else REMOTE


def checked(table: Any, depth: int) -> tuple[Profile, Mapping[str, str]]:
    """Return the profile and the drafters in the table `covey`, for a proposer that may draft `depth` tokens. Raises
    SettingError."""
    if not isinstance(table, Mapping):
        raise SettingError(f"{WHERE}: got {table!r}, allowed: a table")
    drafters = _drafters(table.get("drafters", DRAFTERS))
    return _profile({key: value for key, value in table.items() if key != "drafters"}, drafters, depth), drafters


def _drafters(given: Any) -> Mapping[str, str]:
    if not isinstance(given, Mapping) or not given:
        raise SettingError(f"{WHERE}.drafters: got {given!r}, allowed: a table of names and where each drafter is")
    for name, source in given.items():
        where = f"{WHERE}.drafters.{name}"
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise SettingError(f"{where}: a name may have only letters, digits, and . _ -")
        known = isinstance(source, str) and (source in LOOKUPS or os.path.isdir(source) or _is_place(source))
        if not known:
            raise SettingError(f"{where}: got {source!r}, allowed: {', '.join(LOOKUPS)}, a folder, or HOST:PORT/MODEL")
    return dict(given)


def _profile(tables: JsonDict, drafters: Mapping[str, str], depth: int) -> Profile:
    unknown = [key for key in tables if key not in TABLES]
    if unknown:
        raise SettingError(f"{WHERE}: {unknown[0]!r} is not for vLLM; allowed here: drafters, {', '.join(TABLES)}")
    for setting, reason in REFUSED.items():
        section, _, key = setting.partition(".")
        if key in (tables.get(section) or {}):
            raise SettingError(f"{WHERE}: {setting} is refused: {reason}")
    own = {"max_depth": depth, **(tables.get("speculation") or {})}
    drafter = {"kv_memory_mb": KV_MB, **(tables.get("drafter") or {})}
    found = profile.of_tables({**tables, "speculation": own, "drafter": drafter}, "vllm", WHERE)
    speculation = found.speculation
    if speculation.policy == "adaserve":
        raise SettingError(f"{WHERE}: speculation.policy adaserve is refused: {REFUSED['speculation.adaserve']}")
    if speculation.drafter_policy.startswith(NEEDS_TARGET):
        raise SettingError(
            f"{WHERE}: speculation.drafter_policy {speculation.drafter_policy} is refused: vLLM does not show the "
            "target's distributions"
        )
    fixed = re.fullmatch(r"fixed:(\d+)", speculation.policy)
    deepest = int(fixed[1]) if fixed else speculation.max_depth
    if deepest > depth:
        raise SettingError(f"{WHERE}: speculation: {deepest} drafts, allowed: num_speculative_tokens, {depth}, at most")
    servers = tuple(f"{name}={source}" for name, source in drafters.items() if _is_place(source))
    return replace(
        found,
        speculation=replace(speculation, drafters=tuple(drafters)),
        star=replace(found.star, servers=servers),
    )


def _is_place(source: str) -> bool:
    return not os.path.isdir(source) and PLACE.fullmatch(source) is not None


def _ends(config: Any) -> tuple[int, ...]:
    ends = getattr(config, "eos_token_id", None)
    if ends is None:
        return ()
    return tuple(ends) if isinstance(ends, (list, tuple)) else (int(ends),)

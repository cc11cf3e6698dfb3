"""One deployment's settings: a TOML file becomes a frozen `Profile`.

Every setting is declared once, below, with its default, range and meaning. An unknown key, a wrong type or a value out
of range raises `SettingError` with the file, the key and what is allowed. This module does not know what settings do.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from covey.contracts import objectives, tenants
from covey.contracts.errors import SettingError
from covey.contracts.registry import DRAFTER_POLICIES, POLICIES
from covey.contracts.types import CUSTOM, LOOKUP, JsonDict

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

PROFILE_VARIABLE = "COVEY_PROFILE"
FOLDER_VARIABLE = "COVEY_TARGET_FOLDER"
DRAFTER_VARIABLE = "COVEY_NAMED_DRAFTER"  # ENTRY:FOLDER
DTYPE_VARIABLE = "COVEY_DTYPE"
TOKENS_VARIABLE = "COVEY_KV_TOKENS"  # for every KV pool without a size in the profile
LEFT_OUT_VARIABLE = "COVEY_LEFT_OUT"  # comma-separated drafters of the profile that the launcher did not load
DEFAULT_PROFILE = "demo-cpu"
AUTO = "auto"
DTYPES = (AUTO, "bfloat16", "float16", "float32", "float64")
TARGET_DTYPES = (*DTYPES, "int8")
NO_JOINT_CHOICE = "no policy chooses for the whole batch any more: write fixed, or one of MetaSD's bandits as ucb-be"
BLOCK = 32  # tokens of a KV block
GENERAL, HEAD = "draft_general", "draft_head"  # the entries for a model or a head that is named only by its folder
TABLE = ("1:5", "4:4", "8:3", "16:2", "32:0")


def setting(
    default: Any,
    meaning: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    pattern: str = "",
    gone: Mapping[str, str] | None = None,
) -> Any:
    """Return the field of one setting: its default and, as metadata, its meaning and what is allowed. `gone` says what
    to write instead of a value that was once allowed."""
    limits = {"meaning": meaning, "low": low, "high": high, "choices": choices, "pattern": pattern, "gone": gone or {}}
    return dataclasses.field(default=default, metadata=limits)


@dataclass(frozen=True, slots=True)
class TargetSettings:
    kind: str = setting(
        "neural",
        "a model that runs here, or an emulated device (section emulated)",
        choices=("neural", "emulated"),
    )
    folder: str = setting("", "Hugging Face folder of the target; empty: the version folder of its model entry")
    dtype: str = setting(
        "auto",
        "type of weights and KV; auto: the checkpoint's, or float32 if the device cannot multiply it; int8: products "
        "of bytes, in the native runtime",
        choices=TARGET_DTYPES,
    )
    device: str = setting("auto", "where the target runs", choices=("auto", "cpu", "cuda"))
    numerics: str = setting(
        "auto",
        "invariant: the same bits in any batch; auto: on a CPU invariant if possible, on a GPU fast",
        choices=("auto", "invariant", "fast"),
    )
    runtime: str = setting(
        "auto",
        "runtime of the target; auto: on a CPU the native one if it serves the family and type, else PyTorch",
        choices=("auto", "native", "torch"),
    )
    threads: int = setting(0, "threads of the target's computation; 0: one per core", low=0, high=1024)
    block_size: int = setting(BLOCK, "tokens in a KV block; the native runtime's have 32", low=1, high=256)
    memory: float = setting(
        0.85,
        "share of each device's free memory at the start: for weights, drafters, and a KV pool of at most "
        "max_running of the longest requests",
        low=0.01,
        high=1.0,
    )
    kv_memory_mb: int = setting(0, "memory of the KV pool; 0: what target.memory leaves", low=0, high=1 << 22)
    kv_blocks: int = setting(0, "blocks in the KV pool; 0: as many as its memory holds", low=0, high=1 << 26)
    head: str = setting("", "the drafter that reads this target's states, an EAGLE-3 head; empty: none does")
    run_ahead: bool = setting(True, "compute the next pass while the answer to the last one travels")
    drafts_ahead: bool = setting(
        True, "on a CPU, compute the head's next drafts in this process too, before the answer travels"
    )

    @property
    def names_size(self) -> bool:
        """Return whether the profile sets the pool's size."""
        return self.kv_blocks + self.kv_memory_mb > 0

    @property
    def emulated(self) -> bool:
        """Return whether a device is emulated: then no model runs and no weights are read, the drafters' included."""
        return self.kind == "emulated"


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    max_running: int = setting(64, "most requests in one pass", low=1, high=4096)
    max_waiting: int = setting(256, "requests in the queue before new ones are refused", low=1, high=1 << 20)
    token_budget: int = setting(
        256, "tokens of one pass: decoding rows, drafts and prefill chunks", low=16, high=1 << 16
    )


@dataclass(frozen=True, slots=True)
class SloSettings:
    classes: tuple[str, ...] = setting(
        (),
        f"latency classes that add to {', '.join(objectives.CLASSES)} or replace them: NAME:TPOT:TTFT in "
        "milliseconds, - for any; a TPOT such as 1.2x is relative to an idle server's",
        pattern=objectives.ENTRY,
    )


@dataclass(frozen=True, slots=True)
class LimitSettings:
    max_tokens: int = setting(256, "max_tokens of a request that sets none", low=1, high=1 << 20)
    prompt_bytes: int = setting(1 << 20, "length of text_input", low=1, high=1 << 30)


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """Limits of the process that outside clients reach (`covey.front`). One address may use half of each total."""

    message_bytes: int = setting(2 << 20, "length of a message; a longer one is refused unread", low=1024, high=1 << 28)
    connections: int = setting(1024, "HTTP connections at once, and likewise gRPC calls", low=2, high=1 << 16)
    requests: int = setting(512, "requests in flight", low=2, high=1 << 16)
    rate: float = setting(
        100.0, "requests a second from one address; each 16 KiB of body count as one more", low=0.01, high=1e6
    )
    tenants: int = setting(8, "tenants that one address without a key may use in answer_seconds", low=1, high=1 << 16)
    read_seconds: float = setting(10.0, "time to receive a whole HTTP request", low=0.1, high=3600.0)
    answer_seconds: float = setting(600.0, "time to complete an answer", low=1.0, high=86400.0)
    keys: str = setting("", "file of API keys, private to its owner (docs/security.md); empty: no key needed")
    proxies: tuple[str, ...] = setting(
        (),
        "addresses or networks of proxies whose X-Forwarded-For is trusted, as 10.0.0.0/8",
        pattern=r"[0-9a-fA-F.:]+(/\d{1,3})?",
    )
    origins: tuple[str, ...] = setting(
        (), "web origins that may call, as https://host[:port], or * for all", pattern=r"\*|https?://[^/\s]+"
    )


@dataclass(frozen=True, slots=True)
class TenantSettings:
    weights: tuple[str, ...] = setting(
        (),
        "NAME:WEIGHT, a tenant's share under overload; * is any other tenant, else 1",
        pattern=tenants.ENTRY,
    )
    max_running: int = setting(0, "requests of one tenant that run at once; 0: no such limit", low=0, high=4096)
    max_waiting: int = setting(0, "requests of one tenant in the queue; 0: no such limit", low=0, high=1 << 20)
    priorities: tuple[str, ...] = setting(
        ("*:1000",),
        "NAME:HIGHEST, the highest priority of a tenant's requests; * is any other tenant, else 0",
        pattern=tenants.ENTRY,
    )


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    policy: str = setting(
        "adaptive",
        f"how much to draft: {', '.join(POLICIES)}; k is from 1 to 32",
        pattern="|".join(POLICIES).replace(":k", r":([1-9]|[12]\d|3[0-2])"),
        gone={"covey": "covey is called adaptive now"},
    )
    drafter_policy: str = setting(
        "fixed",
        f"choice of a drafter for each request that names none: {', '.join(DRAFTER_POLICIES)}; parameters after a "
        "colon, as in ucb-be:0.1 or fixed:NAME",
        pattern=rf"({'|'.join(DRAFTER_POLICIES)})(:[\w.,+-]+)?",
        gone=dict.fromkeys(("adaptive", "covey"), NO_JOINT_CHOICE),
    )
    max_depth: int = setting(6, "most tokens that a policy drafts along a path; fixed:k has its own", low=1, high=32)
    table: tuple[str, ...] = setting(
        TABLE,
        "for policy table: BATCH:DEPTH, the depth from a batch size on, as in 8:3; starts at batch size 1",
        pattern=r"\d+:\d+",
    )
    width: int = setting(1, "largest beam width of the candidate trees; 1: chains", low=1, high=8)
    selection: str = setting(
        "all",
        "which drafts to verify: all; worth: those that save time, and those that latency "
        "objectives need first. Policies tetris and adaserve have a selection of their own",
        choices=("all", "worth"),
    )
    adaserve: tuple[str, ...] = setting(
        (),
        "constants of policy adaserve, as b1=128: b1, b2 (tokens of a pass and of a draft's step; 0: by the cost "
        "table), c1, c2, n_max (a request's nodes by need), d_min",
        pattern=r"(b1|b2|c1|c2|n_max|d_min)=\d{1,5}",
    )
    drafters: tuple[str, ...] = setting((), "Triton models that draft")
    lookup: str = setting(
        "suffix",
        "lookup drafts that policy adaptive with selection all adds where a request's text and its tenant's "
        "recent ones promise more; off: none; an emulated target never has them",
        choices=("off", "suffix", "ngram"),
    )
    draft_deadline_ms: float = setting(500.0, "longest wait for a drafter's proposals", low=1, high=60000)
    costs: str = setting(
        AUTO,
        "cost table to start from: a name in profiles/costs, or a path; auto: measured before the first request, and "
        "kept in the server's private folder; empty: none",
    )


@dataclass(frozen=True, slots=True)
class DrafterSettings:
    dtype: str = setting(
        "auto",
        "type of weights and KV; auto: bytes in the native runtime, else bfloat16 if the device multiplies it",
        choices=DTYPES,
    )
    device: str = setting("auto", "where neural drafters run", choices=("auto", "cpu", "cuda"))
    kv_memory_mb: int = setting(
        0, "KV memory of each neural drafter; 0: for as many tokens as the target's pool holds", low=0, high=1 << 20
    )
    kv_blocks: int = setting(0, "KV blocks of each, of 32 tokens; 0: as many as its memory holds", low=0, high=1 << 26)
    folders: tuple[str, ...] = setting(
        (), "NAME:FOLDER of neural drafters that are not in their model's version folder", pattern=r"[\w.-]+:.+"
    )
    catch_up_tokens: int = setting(1024, "most tokens of a call's catch-up; it skips further rows", low=1, high=1 << 20)
    ngram_max: int = setting(4, "longest run of last tokens that the n-gram drafter looks up", low=1, high=32)
    suffix_store_tokens: int = setting(
        65536, "tokens of finished requests that the suffix drafter keeps for each tenant", low=0, high=1 << 26
    )

    @property
    def names_size(self) -> bool:
        """Return whether the profile sets the size of the drafters' pools."""
        return self.kv_blocks + self.kv_memory_mb > 0

    def folder_of(self, name: str) -> str:
        """Return the folder of that drafter in `folders`, or ""."""
        return dict(entry.split(":", 1) for entry in self.folders).get(name, "")


@dataclass(frozen=True, slots=True)
class StarSettings:
    """Drafters for the targets of several servers: `callers` is for the drafters' server, the rest for servers that
    call it."""

    callers: str = setting("", "file with a line `NAME SECRET [WEIGHT]` for each calling server; private to its owner")
    servers: tuple[str, ...] = setting(
        (),
        "where drafters of kind remote are: ENTRY=HOST:PORT/MODEL, the gRPC port; repeat an entry for several places",
        pattern=r"[\w.-]+=[^/\s]+:\d+/[\w.-]+",
    )
    secret: str = setting("", "file with this server's secret, as in those servers' callers; private to its owner")
    tls: bool = setting(False, "use TLS to those servers")
    root_certificates: str = setting("", "file of trusted certificate authorities; empty: the default ones")
    certificate: str = setting("", "file with this server's client certificate, if a server asks for it")
    private_key: str = setting("", "file with the certificate's key; private to its owner")


@dataclass(frozen=True, slots=True)
class MemorySettings:
    policy: str = setting(
        "off",
        "when to unload drafters so that the KV pool can grow: off: never; thresholds: no drafts are made and few "
        "blocks are free, or requests wait for blocks",
        choices=("off", "thresholds"),
    )
    calm_seconds: float = setting(5.0, "how long there must be room before a drafter is reloaded", low=0, high=86400)


@dataclass(frozen=True, slots=True)
class EmulatedSettings:
    """Settings of emulated targets and drafters. Other kinds ignore them."""

    costs: str = setting("emulated-7b-24g", "the device: a cost table in profiles/costs, or a path")
    acceptance: tuple[str, ...] = setting(
        ("draft_emulated:0.6",),
        "probability that a drafter's next token is right if the path was so far, by depth, the last for deeper: "
        "NAME:0.8,0.6, or NAME/TENANT:0.9 for requests of one tenant, or NAME/@ID:0.9 for prompts that "
        "begin with that token",
        pattern=r"[\w.-]+(/[^:]+)?:(0(\.\d+)?|1(\.0+)?)(,(0(\.\d+)?|1(\.0+)?))*",
    )
    kv_token_bytes: int = setting(57344, "bytes of a token's KV, counted in target.kv_memory_mb", low=1, high=1 << 30)
    max_positions: int = setting(32768, "tokens of the longest request", low=16, high=1 << 24)
    drafter_mb: int = setting(1024, "memory of each emulated drafter", low=0, high=1 << 20)


@dataclass(frozen=True, slots=True)
class Profile:
    """A deployment. Its sections are the tables of the TOML file."""

    name: str
    description: str = setting("", "what this deployment is")
    models: tuple[str, ...] = setting(
        ("target", "tokenize", "detokenize", "covey", "covey_unary", "ensemble"), "Triton models to load"
    )
    target: TargetSettings = dataclasses.field(default_factory=TargetSettings)
    scheduler: SchedulerSettings = dataclasses.field(default_factory=SchedulerSettings)
    speculation: SpeculationSettings = dataclasses.field(default_factory=SpeculationSettings)
    drafter: DrafterSettings = dataclasses.field(default_factory=DrafterSettings)
    star: StarSettings = dataclasses.field(default_factory=StarSettings)
    memory: MemorySettings = dataclasses.field(default_factory=MemorySettings)
    emulated: EmulatedSettings = dataclasses.field(default_factory=EmulatedSettings)
    limits: LimitSettings = dataclasses.field(default_factory=LimitSettings)
    front: FrontSettings = dataclasses.field(default_factory=FrontSettings)
    tenants: TenantSettings = dataclasses.field(default_factory=TenantSettings)
    slo: SloSettings = dataclasses.field(default_factory=SloSettings)

    @property
    def drafts_ahead(self) -> bool:
        """Return whether the target may draft with its head itself: every draft is a chain of that head, verified
        whole."""
        own, head = self.speculation, self.target.head
        chains = own.policy != "off" and own.width == 1 and own.selection == "all"
        return self.target.drafts_ahead and bool(head) and own.drafters == (head,) and chains


def profiles_folder() -> Path:
    """Return the folder of named profiles: COVEY_PROFILES, or the repository's own."""
    return Path(os.environ.get("COVEY_PROFILES", Path(__file__).resolve().parents[3] / "profiles"))


def find(name_or_path: str) -> Path:
    """Return the profile's file, given a path or a name in the profiles folder."""
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = profiles_folder() / f"{name_or_path}.toml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in profiles_folder().glob("*.toml"))) or "none"
        meant = Path(f"{name_or_path}.toml")
        hint = f"; to use your own file, name it in full: {meant}" if meant.is_file() else ""
        raise SettingError(f"profile {name_or_path!r} not found at {path}{hint}; known profiles: {known}")
    return path


def costs_file(name_or_path: str) -> Path:
    """Return an existing cost table's file, given a path or a name in profiles/costs."""
    path, folder = Path(name_or_path), profiles_folder() / "costs"
    if path.suffix != ".json":
        path = folder / f"{name_or_path}.json"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.json"))) or "none"
        raise SettingError(f"cost table {name_or_path!r} not found at {path}; known: {known}")
    return path


def load(name_or_path: str) -> Profile:
    """Read and check one profile."""
    tables, path = read(name_or_path)
    profile = of_tables(tables, path.stem, str(path))
    try:
        _check_together(profile)
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from None
    return profile


def _check_together(profile: Profile) -> None:
    """Raise SettingError for settings that contradict each other or name something missing."""
    speculation, drafters = profile.speculation, profile.speculation.drafters
    folders = [entry.split(":", 1)[0] for entry in profile.drafter.folders]
    for key, named, among, known in (
        ("speculation.drafters", drafters, "models", profile.models),
        ("drafter.folders", folders, "speculation.drafters", drafters),
        ("target.head", filter(None, [profile.target.head]), "speculation.drafters", drafters),
    ):
        missing = [name for name in named if name not in known]
        if missing:
            raise SettingError(f"{key}: {', '.join(missing)} must also be in {among}")
    if LOOKUP in drafters:
        raise SettingError(f"speculation.drafters: the name {LOOKUP} is reserved for drafts from the texts themselves")
    if speculation.policy == "table" or speculation.table != TABLE:  # the default may be too deep for other policies
        depths_by_batch(speculation.table, speculation.max_depth)
    fixed = speculation.drafter_policy.partition("fixed:")[2]
    if fixed and fixed not in drafters:
        raise SettingError(
            f"speculation.drafter_policy: got {speculation.drafter_policy!r}, allowed after fixed: one of "
            f"speculation.drafters, {', '.join(drafters) or 'of which there is none'}"
        )
    for entry in profile.front.proxies:
        try:
            ip_network(entry)
        except ValueError as error:
            raise SettingError(f"front.proxies: {error}; allowed: addresses and networks, as 10.0.0.0/8") from None
    names = [entry.split(":")[0] for entry in profile.slo.classes]
    twice = [name for name in names if names.count(name) > 1 or name == CUSTOM]
    if twice:
        raise SettingError(f"slo.classes: got {twice[0]!r}, allowed: each name once, and not {CUSTOM}")
    tables = [("speculation.costs", "" if speculation.costs == AUTO else speculation.costs)]
    if profile.target.emulated:
        tables.append(("emulated.costs", profile.emulated.costs))
    for key, named_table in tables:
        try:
            if named_table:
                costs_file(named_table)
        except SettingError as error:
            raise SettingError(f"{key}: {error}") from None


def read(name_or_path: str) -> tuple[JsonDict, Path]:
    """Return a profile's unchecked tables and its file."""
    path = find(name_or_path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")), path
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path}: not valid TOML: {error}") from None


def written(tables: JsonDict) -> str:
    """Return the text of a profile file with these tables."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for name, section in tables.items():
        if isinstance(section, dict):
            lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    return "\n".join(lines) + "\n"


def of_tables(tables: JsonDict, name: str, where: str) -> Profile:
    """Return the profile in a file's tables, each setting checked alone. Errors begin with `where`."""
    if "targets" in tables:
        raise SettingError(
            f"{where}: targets: a server has one target: start a server with each of these profiles; docs/star.md says "
            "how servers share a drafter"
        )
    return _section(Profile, {"name": name, **tables}, where, "")


def depths_by_batch(entries: Iterable[str], max_depth: int) -> dict[int, int]:
    """Return the depths of `speculation.table` by batch size. `"8:3"` is depth 3 from batch size 8 on."""
    depths: dict[int, int] = {}
    for entry in entries:
        batch, depth = (int(part) if part.isdecimal() else -1 for part in entry.partition(":")[::2])
        if batch < 1 or depth < 0 or batch in depths:
            raise SettingError(
                f"speculation.table: got {entry!r}, allowed: batch:depth, as in 8:3, each batch size once, from 1 on"
            )
        if depth > max_depth:
            raise SettingError(
                f"speculation.table: got {entry!r}, allowed: depths up to speculation.max_depth, {max_depth}"
            )
        depths[batch] = depth
    if 1 not in depths:
        raise SettingError("speculation.table: the table must start with an entry for batch size 1")
    return depths


def of_model(parameters: JsonDict) -> Profile:
    """Return the profile that a model's configuration names, otherwise the launcher's. Benchmarks use the former to
    compare policies on one target."""
    own = parameters.get("profile")
    return load(own["string_value"]) if own else from_environment()


def from_environment() -> Profile:
    """Return the launcher's profile with the environment's overrides. Every backend starts from it."""
    profile = load(os.environ.get(PROFILE_VARIABLE, DEFAULT_PROFILE))
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        target = profile.target
        threads = 0 if profile.name == DEFAULT_PROFILE else target.threads  # its number is for the bundled model
        profile = dataclasses.replace(profile, target=dataclasses.replace(target, folder=folder, threads=threads))
    profile = with_dtype(profile, os.environ.get(DTYPE_VARIABLE, ""))
    profile = with_tokens(profile, int(os.environ.get(TOKENS_VARIABLE, "0")))
    drafter = os.environ.get(DRAFTER_VARIABLE)
    return without(with_drafter(profile, *drafter.split(":", 1)) if drafter else profile, left_out())


def left_out() -> tuple[str, ...]:
    """Return the profile's drafters that the launcher left out because they do not fit the target."""
    return tuple(filter(None, os.environ.get(LEFT_OUT_VARIABLE, "").split(",")))


def with_dtype(profile: Profile, dtype: str) -> Profile:
    """Return the profile with its target in that type; "" leaves it unchanged."""
    if not dtype:
        return profile
    if dtype not in TARGET_DTYPES:
        raise SettingError(f"dtype: got {dtype!r}, allowed: {', '.join(TARGET_DTYPES)}")
    return dataclasses.replace(profile, target=dataclasses.replace(profile.target, dtype=dtype))


def with_tokens(profile: Profile, tokens: int) -> Profile:
    """Return the profile with room for `tokens` tokens in each KV pool without a size; 0 leaves it unchanged."""
    target, drafter = profile.target, profile.drafter
    if tokens and not target.names_size:
        target = dataclasses.replace(target, kv_blocks=max(1, tokens // target.block_size))
    if tokens and not drafter.names_size:
        drafter = dataclasses.replace(drafter, kv_blocks=-(-tokens // BLOCK))
    return dataclasses.replace(profile, target=target, drafter=drafter)


def with_drafter(profile: Profile, entry: str, folder: str) -> Profile:
    """Return the profile with the model in that folder as its first drafter, run by GENERAL, or by HEAD if it is a
    head."""
    others = tuple(name for name in profile.speculation.drafters if name != entry)
    elsewhere = tuple(each for each in profile.drafter.folders if not each.startswith(f"{entry}:"))
    head = HEAD if entry == HEAD else profile.target.head
    return dataclasses.replace(
        profile,
        models=(*(name for name in profile.models if name != entry), entry),
        target=dataclasses.replace(profile.target, head=head),
        speculation=dataclasses.replace(profile.speculation, drafters=(entry, *others)),
        drafter=dataclasses.replace(profile.drafter, folders=(*elsewhere, f"{entry}:{folder}")),
    )


def without(profile: Profile, drafters: Iterable[str]) -> Profile:
    """Return the profile without those drafters."""
    gone = set(drafters)
    kept = tuple(name for name in profile.speculation.drafters if name not in gone)
    return dataclasses.replace(
        profile,
        models=tuple(name for name in profile.models if name not in gone),
        speculation=dataclasses.replace(profile.speculation, drafters=kept),
        target=dataclasses.replace(profile.target, head="") if profile.target.head in gone else profile.target,
    )


def _section(kind: type[T], table: JsonDict, where: str, prefix: str) -> T:
    hints = get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]  # any dataclass type
    values: JsonDict = {}
    for key, value in table.items():
        name = f"{prefix}{key}"
        if key not in fields:
            raise SettingError(f"{where}: unknown key {name!r}; allowed here: {', '.join(fields)}")
        expected = hints[key]
        if dataclasses.is_dataclass(expected):
            if not isinstance(value, dict):
                raise SettingError(f"{where}: {name} must be a table")
            values[key] = _section(cast("type[Any]", expected), value, where, f"{name}.")
        else:
            values[key] = _checked(value, expected, fields[key].metadata, f"{where}: {name}")
    return kind(**values)


def _checked(value: Any, expected: Any, limits: Any, where: str) -> Any:
    if expected == tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise SettingError(f"{where}: got {value!r}, allowed: a list of strings")
        wrong = [item for item in value if limits["pattern"] and not re.fullmatch(limits["pattern"], item)]
        if wrong:
            raise SettingError(f"{where}: got {wrong[0]!r}, allowed: {limits['meaning']}")
        return tuple(value)
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not expected:
        raise SettingError(f"{where}: got {value!r}, allowed: {expected.__name__}")
    low, high, choices, pattern = (limits.get(name) for name in ("low", "high", "choices", "pattern"))
    if pattern and not re.fullmatch(pattern, value):
        instead = f"; {limits['gone'][value]}" if value in limits["gone"] else ""
        raise SettingError(f"{where}: got {value!r}, allowed: {limits['meaning']}{instead}")
    if choices and value not in choices:
        raise SettingError(f"{where}: got {value!r}, allowed: {', '.join(choices)}")
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        raise SettingError(f"{where}: got {value!r}, allowed: {low} to {high}")
    return value

"""Builds the command line and the environment of one tritonserver."""

from __future__ import annotations

import math
import os
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path

from covey.care.control import HTTP_VARIABLE
from covey.contracts.profile import (
    DRAFTER_VARIABLE,
    DTYPE_VARIABLE,
    FOLDER_VARIABLE,
    LEFT_OUT_VARIABLE,
    PROFILE_VARIABLE,
    TOKENS_VARIABLE,
)
from covey.process.private import KEPT_VARIABLE, private_folder
from covey.server.backend_dir import OWN_LIBRARY
from covey.server.installation import Installation
from covey.server.options import Options, reachable
from covey.wire import token
from covey_client import secret

RESTRICTED = "model-repository,model-config,shared-memory,statistics,trace,logging"
# Triton gives all Python backends the settings of the backend `python`, except the one with its own library
# (`backend_dir`).
STUB_SECONDS = "300"  # longest load of a model
# Threads of tritonserver for each model instance, started with it and shared by its BLS calls in flight and its sends.
# If an instance's process dies within a call, Triton keeps the instance until the server ends. Such a death costs these
# threads and three more.
FEW_THREADS, MANY_THREADS = "1", "128"
# If tritonserver gives up waiting for requests, it ends while they run, and usually aborts or crashes. (Streams left by
# a killed model process never end.) The launcher's SIGKILL comes first and is clean.
EXIT_MARGIN_SECONDS = 5
# Idle threads of OpenMP and of numpy's OpenBLAS must sleep: several processes share the cores, and a spinning thread
# steals another's. OpenBLAS has no setting for that, so it gets no threads.
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0", "OPENBLAS_NUM_THREADS": "1"}
# oneDNN and PyTorch's layer above it each cache compiled code by shape, 0.3 MB each and 1024 by default. A process with
# many shapes grows by a gigabyte; with 512 a drafter under varied load grows by half of that.
COMPILED = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "512", "LRU_CACHE_CAPACITY": "512"}


def command(
    options: Options, installation: Installation, backend_directory: Path, models: tuple[str, ...], region_prefix: str
) -> list[str]:
    """Return the command line. The ports and the secret in `options` must be chosen."""
    settings = {"stub-timeout-seconds": STUB_SECONDS, "shm-region-prefix-name": region_prefix}
    pools = {"python": FEW_THREADS, OWN_LIBRARY: MANY_THREADS}
    words = [
        str(installation.binary),
        f"--model-repository={options.repository_folder()}",
        f"--backend-directory={backend_directory}",
        "--model-control-mode=explicit",
        "--disable-auto-complete-config",
        f"--http-address={options.host}",
        f"--http-port={options.http_port}",
        f"--grpc-address={options.host}",
        f"--grpc-port={options.grpc_port}",
        f"--metrics-address={options.host}",
        f"--metrics-port={options.metrics_port}",
        f"--exit-timeout-secs={math.ceil(options.stop_seconds) + EXIT_MARGIN_SECONDS}",
        f"--log-verbose={options.verbose}",
        f"--http-restricted-api={RESTRICTED}:{secret.HEADER}={options.admin_secret}",
        f"--grpc-restricted-protocol={RESTRICTED}:{secret.HEADER}={options.admin_secret}",
    ]
    for backend, threads in pools.items():
        words += [f"--backend-config={backend},{key}={value}" for key, value in settings.items()]
        words.append(f"--backend-config={backend},thread-pool-size={threads}")
    words += [f"--load-model={model}" for model in models]
    return [*words, *options.extra]


def environment(
    options: Options, installation: Installation, left_out: Iterable[str] = (), tokens: int = 0
) -> dict[str, str]:
    """Return this process's environment, with the variables by which the stubs find this interpreter and its packages.
    `left_out` has the drafters not to load. KV pools without a size in the profile get room for `tokens`."""
    values = dict(os.environ)
    for key, value in (PASSIVE | COMPILED).items():
        values.setdefault(key, value)
    libraries = [str(folder) for folder in installation.libraries]
    values["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [*libraries, values.get("LD_LIBRARY_PATH")]))
    values["PATH"] = os.pathsep.join(filter(None, [str(Path(sys.executable).parent), values.get("PATH")]))
    if sys.prefix != sys.base_prefix:
        values["VIRTUAL_ENV"] = sys.prefix
    values["PYTHONUNBUFFERED"] = "1"  # so the last output of a dying stub reaches the log
    profile = Path(options.profile)
    values[PROFILE_VARIABLE] = str(profile.resolve()) if profile.is_file() else options.profile
    if options.model:
        values[FOLDER_VARIABLE] = str(Path(options.model).resolve())
    if options.dtype:
        values[DTYPE_VARIABLE] = options.dtype
    if options.drafter:
        values[DRAFTER_VARIABLE] = f"{options.drafter_entry()}:{Path(options.drafter).resolve()}"
    values[TOKENS_VARIABLE] = str(tokens)
    values[LEFT_OUT_VARIABLE] = ",".join(left_out)
    values[KEPT_VARIABLE] = str(private_folder(options.kept_folder()))  # its files are trusted
    values[HTTP_VARIABLE] = f"{reachable(options.host)}:{options.http_port}"
    values[secret.VARIABLE] = options.admin_secret
    values[token.VARIABLE] = secrets.token_hex(16)  # drawn for this server: its models know each other by it
    return values | dict(options.environment)

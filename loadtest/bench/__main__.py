"""The command line of the benches: `python -m loadtest.bench NAME [--json OUT] [--quick]`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from covey.contracts.errors import CoveyError
from covey.launcher import ServerDied, StartError
from covey_client import interruption
from loadtest.bench.session import Session, Wanted, served

BENCHES = {
    "speedup": "what adaptive and fixed draft lengths gain over none, by callers and temperature",
    "exactness": "whether a token's draw is the same bits in any company, at every length",
    "trial": "whether a server keeps its promises here: texts, a drafter's death, memory that moves",
    "gpu": "how near a GPU's limits, part by part: rounds, policies",
    "emulated": "every policy on emulated pairs, in virtual time; says nothing of this machine",
    "slo": "requests with latency objectives, and who meets how many of them, in virtual time",
    "peers": "Covey beside OpenVINO GenAI, vLLM, llama.cpp and transformers, in turns",
}


def main(arguments: Sequence[str]) -> int:
    try:
        name, wanted = _parse(arguments)
    except StartError as error:
        raise SystemExit(f"covey: {error}") from None
    session = Session(name, wanted, Console(stderr=True))
    bench = importlib.import_module(f"loadtest.bench.{name}")
    interruption.by_signals()
    status = 0
    try:
        bench.run(session)
    except KeyboardInterrupt:
        session.interrupted = True
        session.console.print("interrupted: writing the results so far")
        status = 130
    except (CoveyError, StartError, ServerDied) as error:
        session.console.print(f"{name}: {error}", style="red")
        return 1
    except Exception as error:
        session.notes["error"] = repr(error)
        session.write()
        raise
    result = session.write()
    bench.show(result, Console())
    return status


def _parse(arguments: Sequence[str]) -> tuple[str, Wanted]:
    """Return the bench's name and its options; `Wanted` has the defaults."""
    known = "\n".join(f"  {name:10} {meaning}" for name, meaning in BENCHES.items())
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench",
        description=f"Measure Covey on this machine.\n\nbenches:\n{known}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add("name", choices=list(BENCHES), metavar="NAME")
    add("--json", type=Path, dest="out", metavar="OUT", help="default: runs/bench/NAME.json")
    add("--quick", action="store_true", help="a smoke run, below a minute")
    add("--seed", type=int)
    add("--profile", metavar="NAME", default="", help="as `make serve` takes it (default: the bundled real model's)")
    add("--model", metavar="FOLDER", default="", help="Hugging Face folder of another target")
    add("--data", type=Path, metavar="FILE", help="Azure's trace")
    pair = "of `emulated`: this pair alone; of `peers`: an aligned one"
    add("--pair", dest="pairs", action="append", metavar="NAME", help=pair)
    loads = "of `speedup`: the loads, as 1,4,16,32"
    add("--callers", type=lambda text: [int(each) for each in text.split(",")], metavar="N,N", help=loads)
    part = "of `gpu`, `slo`, `trial`: this alone"
    add("--part", dest="parts", action="append", metavar="NAME", help=part)
    peer = "of `peers`: openvino, vllm, llamacpp or transformers, and a Python that has it; may be repeated"
    add("--peer", dest="peers", action="append", metavar="NAME=PYTHON", help=peer)
    gpu = parser.add_argument_group("of `gpu`")
    gpu.add_argument("--device", choices=("auto", "cuda", "cpu"))
    gpu.add_argument("--size", dest="shape", metavar="NAME", help="of the pair: 7b, off a GPU tiny")
    gpu.add_argument("--agreement", type=float, help="how often the drafter is right")
    add("--minutes", type=float, help="start no repetition that would end later")
    add("--repetitions", type=int, metavar="N", help="of each point; of `slo`: its requests")
    given = vars(parser.parse_args(arguments))
    name = given.pop("name")
    usual = {"out": Path("runs", "bench", f"{name}.json")}
    given |= served(given["profile"], given["model"])
    several = {key: tuple(value) for key, value in given.items() if isinstance(value, list)}
    return name, Wanted(**usual | given | several)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m loadtest.bench NAME [--json OUT] [--quick | --full]`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from covey.contracts.errors import CoveyError
from covey.contracts.profile import DEFAULT_PROFILE
from covey.server import ServerDied, StartError
from covey_client import interruption
from loadtest.bench.session import FULL, QUICK, USUAL, Session, Wanted

BENCHES = {
    "tax": "what Triton and the front cost over the engine in process",
    "speedup": "what fixed speculation gains over none, one request at a time",
    "load": "policies against fixed depths in a closed loop, over concurrency",
    "exactness": "whether a token's draw is the same bits in any company, at every length, and what that costs",
    "gpu": "how near a GPU's limits, part by part: kernels, rounds, policies",
    "drafters": "who drafts: policies that choose beside each drafter alone",
    "elastic": "drafters that leave so that the KV pool can grow, on and off: emulated in virtual time, and bundled",
    "emulated": "every policy on emulated pairs, in virtual time; says nothing of this machine",
    "star": "one drafter for one to eight targets, emulated: beside StarSD's formula and table, and on real servers",
    "fleet": "how many replicas a load takes, and 64 to 1,024 simulated ones behind routers, which die and come back",
    "slo": "requests with latency objectives, and who meets how many of them, in virtual time",
    "peers": "Covey beside OpenVINO GenAI, vLLM on a CPU and the machine's own limit, in turns",
    "engine": "Covey's proposer inside vLLM on a CPU, beside vLLM's own, in turns",
    "ray": "two servers behind Ray Serve's ingress beside one without Ray, emulated, in turns",
    "published": "Nightjar's tables and figures beside emulated ones, in virtual time",
}


def main(arguments: Sequence[str]) -> int:
    name, wanted = _parse(arguments)
    session = Session(name, wanted, Console(stderr=True))
    bench = importlib.import_module(f"loadtest.bench.{name}")
    interruption.by_signals()
    status = 0
    try:
        bench.run(session)
    except KeyboardInterrupt:
        session.interrupted = True
        session.console.print("interrupted: writing what there is")
        status = 130
    except (CoveyError, StartError, ServerDied) as error:
        session.console.print(f"{name}: {error}", style="red")
        return 1
    except Exception as error:
        session.notes["error"] = repr(error)
        session.write()
        raise
    bench.show(session.write(), Console(), wanted.out.with_suffix(".png"))
    return status


def _parse(arguments: Sequence[str]) -> tuple[str, Wanted]:
    known = "\n".join(f"  {name:10} {meaning}" for name, meaning in BENCHES.items())
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.bench",
        description=f"Measure Covey on this machine.\n\nbenches:\n{known}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=list(BENCHES), metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="OUT", help="default: runs/bench/NAME.json; picture beside it")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_const", dest="size", const=QUICK, help="a smoke run, below a minute")
    size.add_argument("--full", action="store_const", dest="size", const=FULL, help="more repetitions")
    parser.add_argument("--seed", type=int, default=Wanted.seed)
    parser.add_argument("--profile", default=DEFAULT_PROFILE, metavar="NAME")
    parser.add_argument("--model", default="", metavar="FOLDER", help="Hugging Face folder of another target")
    parser.add_argument("--data", type=Path, default=None, metavar="PATH", help="Azure's trace, or the folder it is in")
    parser.add_argument(
        "--pair",
        action="append",
        default=[],
        metavar="NAME",
        help="of `emulated`: this pair alone; of `elastic`, `peers`, `engine`: an aligned one",
    )
    parser.add_argument("--dataset", default=Wanted.dataset, metavar="NAME", help="of `emulated`: whose lengths")
    parser.add_argument(
        "--part",
        action="append",
        default=[],
        metavar="NAME",
        help="of `exactness`, `gpu`, `elastic`, `peers`, `engine`, `star`, `fleet`, `slo`, `tax`, `ray`: this alone",
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="of `peers` and `engine`: openvino or vllm, and the Python of an environment that has it; may be repeated",
    )
    gpu = parser.add_argument_group("of `gpu`")
    gpu.add_argument("--device", choices=("auto", "cuda", "cpu", "interpreted"), default=Wanted.device)
    gpu.add_argument("--size", dest="shape", default="", metavar="NAME", help="of the pair: 7b, off a GPU tiny")
    gpu.add_argument("--agreement", type=float, default=Wanted.agreement, help="how often the drafter is right")
    gpu.add_argument("--no-run-ahead", dest="run_ahead", action="store_false", help="no plain pass before it is due")
    parser.add_argument("--minutes", type=float, default=None, help="begin no repetition that would end later")
    parser.add_argument("--repetitions", type=int, default=0, metavar="N", help="of `slo`: requests a point")
    given = parser.parse_args(arguments)
    chosen = given.size or USUAL
    return given.name, Wanted(
        out=given.json or Path("runs") / "bench" / f"{given.name}.json",
        size=chosen,
        seed=given.seed,
        profile=given.profile,
        model=given.model,
        minutes=given.minutes or (90.0 if chosen == FULL else Wanted.minutes),
        repetitions=given.repetitions,
        data=given.data,
        pairs=tuple(given.pair),
        dataset=given.dataset,
        parts=tuple(given.part),
        peers=tuple(given.peer),
        device=given.device,
        shape=given.shape,
        agreement=given.agreement,
        run_ahead=given.run_ahead,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

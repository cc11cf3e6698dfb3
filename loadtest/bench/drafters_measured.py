"""Systems that choose drafters, compared pair by pair within repetitions. Knows neither servers nor clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from rich.table import Table

from covey.types import JsonDict
from loadtest.bench import report
from loadtest.bench.statistics import geometric_mean, interval, ratios

OFF, GENERAL, ORACLE, COVEY, RANDOM, HEDGE, UCB_BE, UCB_BD = (
    "off", "general", "oracle", "covey", "random", "hedge", "ucb-be", "ucb-bd",
)  # fmt: skip
AGAINST = {
    "covey_over_general": (GENERAL,),
    "covey_over_random": (RANDOM,),
    "covey_over_ucb": (UCB_BE, UCB_BD),
    "covey_over_hedge": (HEDGE,),
    "covey_share_of_oracle": (ORACLE,),
}


def compared(above: Sequence[float], below: Sequence[float]) -> JsonDict | None:
    """The median of ratios, each of one repetition, and its interval at 95 %; None of nothing."""
    each = ratios(above, below)
    if not each:
        return None
    low, high = interval(each, of=median)
    return {"median": median(each), "interval": [low, high], "repetitions": len(each)}


def keys(rates: Mapping[str, Sequence[float]]) -> JsonDict:
    """covey against the others, by tokens per second in each repetition. Of two opponents in one key, the better."""
    found: JsonDict = {}
    for key, names in AGAINST.items():
        there = [name for name in names if rates.get(name)]
        best = max(there, key=lambda name: median(rates[name]), default=None)
        found[key] = compared(rates.get(COVEY, ()), rates[best]) if best is not None else None
    return found


def by_domain(speeds: Mapping[str, Sequence[Mapping[str, float]]], base: str = OFF) -> JsonDict:
    """Speed-up over `base` by system and domain, the median over repetitions, and the geometric mean over domains:
    Table 3. `speeds`: by system and repetition, tokens per second of each domain."""
    table: JsonDict = {}
    for name, repetitions in speeds.items():
        pairs = list(zip(repetitions, speeds.get(base, ())))
        if pairs and name != base:
            domains = {d: median(ratios([own[d] for own, _ in pairs], [b[d] for _, b in pairs])) for d in pairs[0][0]}
            table[name] = {**domains, "mean": geometric_mean(list(domains.values()))}
    return table


def shown(title: str, table: JsonDict) -> Table:
    """Table 3, as a table."""
    domains = list(next(iter(table.values()), {}))
    rows = [[name, *(report.number(row[domain]) for domain in domains)] for name, row in table.items()]
    return report.table(title, ["", *domains], rows)


def shown_keys(title: str, parts: Mapping[str, JsonDict]) -> Table:
    """covey against the others, part by part."""

    def cell(found: JsonDict | None) -> str:
        if found is None:
            return "-"
        low, high = found["interval"]
        return f"{found['median']:.3f} ({low:.2f} to {high:.2f})"

    rows = [[name, *(cell(part.get(key)) for key in AGAINST)] for name, part in parts.items()]
    return report.table(title, ["", *(key.removeprefix("covey_").replace("_", " ") for key in AGAINST)], rows)

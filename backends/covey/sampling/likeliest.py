"""Finds the likeliest tokens at each draw by the model itself: before bias, penalties and temperature."""

from __future__ import annotations

import numpy as np

from covey.contracts.types import LEAST_LOGPROB, Ints, Top
from covey.noise.arrays import Logits, beside, host, largest, log_softmax, plain
from covey.sampling.settings import SettingsTable


def likeliest(logits: Logits, table: SettingsTable, settings: Ints, places: Ints) -> Top:
    """Return the likeliest tokens of the rows `places` of `logits`, the number that each row's request asked for. The
    lowest id comes first among equals, even if not all of them are wanted. So a row's tokens do not depend on other
    rows."""
    counts = table.top_logprobs[settings[places]]
    width = min(int(counts.max(initial=0)), logits.shape[1])
    if not width:
        return Top.none(len(places))
    ids, logprobs = np.full((len(places), width), -1, np.int32), np.zeros((len(places), width), np.float32)
    asked = np.flatnonzero(counts)
    part = plain(logits)
    part = part[beside(places[asked].astype(np.int64), part)]
    least = beside(largest(part, width)[:, -1:].copy(), part)
    rows, tokens = host(part >= least).nonzero()  # including ties with the last
    values = host(part[beside(rows, part), beside(tokens, part)]).astype(np.float64)
    order = np.lexsort((tokens, -values, rows))
    rows, tokens = rows[order], tokens[order]
    rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
    kept = rank < counts[asked][rows]
    rows, tokens, rank = rows[kept], tokens[kept], rank[kept]
    shares = host(log_softmax(part)[beside(rows, part), beside(tokens, part)])
    ids[asked[rows], rank], logprobs[asked[rows], rank] = tokens, np.maximum(shares, LEAST_LOGPROB)
    return Top(ids, logprobs)

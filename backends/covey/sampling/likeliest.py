"""The likeliest tokens where tokens were drawn, by the model itself: before bias, penalties and temperature."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from covey.sampling.noise import Index
from covey.sampling.settings import SettingsTable
from covey.sampling.truncation import select
from covey.types import LEAST_LOGPROB, Ints, Top


def likeliest(logits: Tensor, table: SettingsTable, settings: Ints, places: Ints) -> Top:
    """Of the rows `places` of `logits`, as many as each one's request asked for. The lowest id comes first among
    equals, also where not all of them are wanted, so that a row's tokens depend on nothing beside it."""
    counts = table.top_logprobs[settings[places]]
    width = min(int(counts.max(initial=0)), logits.shape[1])
    if not width:
        return Top.none(len(places))
    ids, logprobs = np.full((len(places), width), -1, np.int32), np.zeros((len(places), width), np.float32)
    asked = np.flatnonzero(counts)
    part = select(logits, places[asked].astype(np.int64))
    part = part if part.dtype in (torch.float32, torch.float64) else part.float()
    least = part.topk(width, dim=1).values[:, -1:]
    rows, tokens = _nonzero(part >= least)  # those as likely as the last of them, too
    values = part[torch.from_numpy(rows), torch.from_numpy(tokens)].double().cpu().numpy()
    order = np.lexsort((tokens, -values, rows))
    rows, tokens = rows[order], tokens[order]
    rank = np.arange(len(rows)) - np.searchsorted(rows, rows)
    kept = rank < counts[asked][rows]
    rows, tokens, rank = rows[kept], tokens[kept], rank[kept]
    shares = part.log_softmax(dim=1)[torch.from_numpy(rows), torch.from_numpy(tokens)].float().cpu().numpy()
    ids[asked[rows], rank], logprobs[asked[rows], rank] = tokens, np.maximum(shares, LEAST_LOGPROB)
    return Top(ids, logprobs)


def _nonzero(mask: Tensor) -> tuple[Index, Index]:
    rows, tokens = mask.cpu().numpy().nonzero()
    return rows, tokens

"""What requests add to the logits of tokens that they name, on the target and on drafters alike."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from covey.sampling.noise import Index
from covey.sampling.settings import SettingsTable
from covey_client.wire import BAN


def biased(logits: Tensor, table: SettingsTable, settings: Index) -> Tensor:
    """Logits with each row's bias; the same tensor where no row has one. Nothing is added up: a row's bits depend on
    its own settings alone."""
    rows = np.flatnonzero(table.biased[settings])
    if not len(rows):
        return logits
    vocab = logits.shape[1]
    own, which = np.unique(settings[rows], return_inverse=True)
    pairs = [np.asarray(table.sampling(int(setting)).logit_bias, np.float64) for setting in own]
    tokens = np.concatenate([pairs[at][:, 0].astype(np.int64) for at in which])
    values = np.concatenate([pairs[at][:, 1] for at in which])
    places = np.repeat(rows * vocab, [len(pairs[at]) for at in which]) + tokens
    inside = tokens < vocab
    where = torch.from_numpy(places[inside]).to(logits.device)
    bias = torch.from_numpy(np.where(values > BAN, values, -np.inf)[inside]).to(logits.device)
    logits = logits.clone(memory_format=torch.contiguous_format)
    flat = logits.view(-1)
    flat[where] = (flat[where].double() + bias).to(logits.dtype)
    return logits

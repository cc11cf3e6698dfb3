"""Adds the bias of each request to the logits of the tokens that it names, on the target and on drafters."""

from __future__ import annotations

import numpy as np

from covey.noise.arrays import Logits, beside, copied, double, of_type
from covey.noise.noise import Index
from covey.sampling.settings import SettingsTable
from covey_client.wire import BAN


def biased(logits: Logits, table: SettingsTable, settings: Index) -> Logits:
    """Return logits with each row's bias; the same object if no row has one. A row's bits depend only on its own
    settings."""
    rows = np.flatnonzero(table.biased[settings])
    if not len(rows):
        return logits
    vocab = logits.shape[1]
    own, which = np.unique(settings[rows], return_inverse=True)
    biases = [table.biases[int(setting)] for setting in own]
    tokens = np.concatenate([biases[at][0] for at in which])
    values = np.concatenate([biases[at][1] for at in which])
    places = np.repeat(rows * vocab, [len(biases[at][0]) for at in which]) + tokens
    inside = tokens < vocab
    where = beside(places[inside], logits)
    bias = beside(np.where(values > BAN, values, -np.inf)[inside], logits)
    logits = copied(logits)
    flat = logits.reshape(-1)
    flat[where] = of_type(double(flat[where]) + bias, logits)
    return logits

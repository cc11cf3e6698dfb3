"""The bias that requests add to the logits of tokens that they name, on the target and on drafters alike."""

from __future__ import annotations

import numpy as np

from covey.noise.arrays import Logits, beside, copied, double, of_type
from covey.noise.noise import Index
from covey.sampling.settings import SettingsTable
from covey_client.wire import BAN


def biased(logits: Logits, table: SettingsTable, settings: Index) -> Logits:
    """Return logits with each row's bias; the same tensor where no row has one. Nothing is added up: a row's bits
    depend on its own settings alone."""
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

"""A linear model of a time, learnt by Bayesian regression with forgetting.

    y = phi . w + noise,   noise ~ N(0, (relative * |y|)^2),   w ~ N(m, P)

Before each update P moves a little towards the prior covariance. So old measurements are forgotten where new ones come,
and doubt grows where none do. While errors keep one sign, forgetting is 300 times faster. Outliers are clipped to three
deviations, so a pause of the machine does not spoil the model. Before the first measurement only the curve's shape is
known; the first one scales it.
"""

from __future__ import annotations

import math
from bisect import bisect_left

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

FORGETTING = 1e-5  # share of the information forgotten at every measurement
BIASED = 0.9  # a moving average of errors beyond this is bias: four times its deviation by chance
HASTE = 300.0  # factor of forgetting while errors are biased


class Regression:
    """A linear model; `shape` are the prior weights up to a factor, `doubt` their covariance over its square."""

    def __init__(self, shape: Array, doubt: Array, *, noise: float = 0.05) -> None:
        self._shape = shape
        self._doubt = doubt
        self._noise = noise * noise
        self._bias = 0.0  # moving average of errors in deviations
        self.scaled = False
        self._scale(1.0)

    def assume(self, factor: float) -> None:
        """Predict `factor` times the shape until something is measured."""
        if not self.scaled:
            self._scale(factor)

    @property
    def weights(self) -> Array:
        """Return the contribution of each feature. Callers must not change the array."""
        return self._weights

    def mean(self, features: Array) -> Array:
        """Return predictions, one per row of features."""
        means: Array = np.dot(features, self._weights)
        return means

    def variance(self, features: Array) -> Array:
        """Return the predictions' variance, one per row of features, without measurement noise."""
        variances: Array = (np.dot(features, self._covariance) * features).sum(axis=1)
        return variances

    def update(self, features: Array, measured: float, times: int = 1) -> None:
        """Learn from one measurement at one row of features, or from the mean of `times` measurements."""
        if not self.scaled:
            expected = float(np.dot(features, self._shape))
            if measured <= 0 or expected <= 0:
                return
            self._scale(measured / expected)
            self.scaled = True
        covariance = self._covariance
        if abs(self._bias) > BIASED:
            covariance += times * HASTE * (self._growth - FORGETTING * covariance)
        else:
            covariance *= 1.0 - times * FORGETTING
            covariance += times * self._growth
        spread = np.dot(covariance, features)
        expected = float(np.dot(features, self._weights))
        error = measured - expected
        square = max(expected, 1e-9) ** 2
        noise = square * self._noise / times
        total = float(np.dot(features, spread)) + noise
        limit = 3.0 * math.sqrt(total)
        # Noise is learnt from clipped errors, so that measurements of precise machines weigh more.
        ratio = times * min(error * error, limit * limit) / (total / noise) / square
        self._noise += 0.01 * times * (max(ratio, 1e-5) - self._noise)
        error = min(limit, max(-limit, error))
        self._bias += 0.1 * times * (error / math.sqrt(total) - self._bias)
        self._weights += spread * (error / total)
        covariance -= spread[:, None] * (spread / total)

    def believe(self, features: Array, measured: float) -> None:
        """Learn from a careful measurement, which is not clipped."""
        if not self.scaled:
            self.update(features, measured)
            return
        spread = np.dot(self._covariance, features)
        total = float(np.dot(features, spread)) + measured * measured * self._noise
        self._weights += spread * ((measured - float(np.dot(features, self._weights))) / total)
        self._covariance -= spread[:, None] * (spread / total)

    def _scale(self, factor: float) -> None:
        self._weights = self._shape * factor
        self._covariance = self._doubt * factor**2
        self._growth = FORGETTING * self._covariance


def hat(value: float, knots: Array) -> Array:
    """Return the weights of the knots for linear interpolation at `value`; beyond the last knot, extrapolate."""
    index = min(max(1, bisect_left(knots, value)), len(knots) - 1)
    weight = (value - knots[index - 1]) / (knots[index] - knots[index - 1])
    weights = np.zeros(len(knots))
    weights[index - 1], weights[index] = 1.0 - weight, weight
    return weights


def smooth(knots: int, reach: float, deviation: float) -> Array:
    """Return the prior covariance of values at knots: similar within `reach` knots, independent beyond."""
    distance = np.abs(np.subtract.outer(np.arange(knots), np.arange(knots)))
    covariance: Array = np.multiply(deviation**2, np.exp(-distance / reach))
    return covariance


def doublings(most: int) -> Array:
    """Return the knots 1, 2, 4 ... up to at least `most`; at least two knots."""
    knots: Array = np.power(2.0, np.arange(max(2, math.ceil(math.log2(max(1, most))) + 1)))
    return knots

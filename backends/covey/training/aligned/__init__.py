"""A synthetic pair of models to measure speculative decoding with: random weights, full cost, a chosen agreement."""

from covey.training.aligned.build import Pair, build
from covey.training.aligned.folders import save
from covey.training.aligned.shapes import SIZES, default_layers, read_shape, shape

__all__ = ["SIZES", "Pair", "build", "default_layers", "read_shape", "save", "shape"]

"""Makes a synthetic pair to measure speculative decoding with: random weights, real cost, a chosen agreement."""

from covey_training.aligned.build import Pair, build
from covey_training.aligned.folders import save
from covey_training.aligned.shapes import SIZES, default_layers, shape

__all__ = ["SIZES", "Pair", "build", "default_layers", "save", "shape"]

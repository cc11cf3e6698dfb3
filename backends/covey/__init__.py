"""Adaptive speculative decoding on Triton. Start reading at `covey.loop.engine`."""

from covey.process.cpu import take_lesser

take_lesser()  # before any process of ours loads a library that looks for instructions

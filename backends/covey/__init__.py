"""Adaptive speculative decoding on Triton. Start reading at `covey.engine`."""

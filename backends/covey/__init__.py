"""Adaptive speculative decoding on Triton. Start reading at `covey.loop.engine`."""

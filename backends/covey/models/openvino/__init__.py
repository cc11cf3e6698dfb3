"""Models of the plain families on a CPU by OpenVINO's runtime, without torch and without transformers' modules.

OpenVINO reports each import of its package to its maker wherever `openvino_telemetry` is installed, as its wheel asks
for: here it finds none, before anything imports it.
"""

import sys

BLOCK = 32  # slots of a block: what the CPU's paged attention is made for
KINDS = ("bfloat16", "float32")  # types that it computes in
BYTES = "int8"  # drafters' products: weights and activations in bytes, all else in float32

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

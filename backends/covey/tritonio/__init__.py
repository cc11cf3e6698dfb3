"""Everything that touches Triton: messages between models, the public request's fields, ports over BLS, metrics."""

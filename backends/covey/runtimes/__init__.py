"""The runtime that computes a model, native, PyTorch or the kernels of a GPU: its choice, thread and pool."""

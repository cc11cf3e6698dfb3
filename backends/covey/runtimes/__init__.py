"""The runtime that computes a model (native, PyTorch or GPU kernels): its choice, its thread and its pool."""

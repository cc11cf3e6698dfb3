"""Bookkeeping of KV blocks: who owns which, and whose contents can be used again. Knows no tensors."""

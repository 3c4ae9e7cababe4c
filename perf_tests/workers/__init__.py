"""Benchmarks in processes of their own: the protocol, the plugin, and one module per kind of worker."""

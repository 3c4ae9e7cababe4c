"""Benchmarks in processes of their own."""

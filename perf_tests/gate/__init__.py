"""Samples in, verdicts out, with the statistics between; imports neither torch nor pytest."""

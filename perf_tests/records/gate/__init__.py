"""The gate: raw samples of base and head in, verdicts out. Nothing here is loaded that was not asked for."""

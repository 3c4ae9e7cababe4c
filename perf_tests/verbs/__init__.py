"""The verbs of `python -m perf_tests`, one file each: what they take, print and return."""

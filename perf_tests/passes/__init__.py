"""Extra passes over the cases: kernels, memory, warm-up."""

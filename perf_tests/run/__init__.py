"""A run under pytest: before the first case, after each case, and its verdicts."""

"""Before the first case, after each case, and the verdicts of a run."""

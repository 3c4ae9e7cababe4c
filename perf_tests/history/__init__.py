"""Runs over commits: when a time or a counter changed. No torch."""

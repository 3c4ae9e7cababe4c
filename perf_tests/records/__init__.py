"""Saved files and joining them: record, journal, store, compare, ledger; never imports torch."""

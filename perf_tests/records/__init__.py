"""Saved files and joining them: record, journal, store, compare, ledger, published tables; never imports torch."""

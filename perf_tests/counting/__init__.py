"""Exact counters of a case, counted on tensors without content, and the ledger's grid."""

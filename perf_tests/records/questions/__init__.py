"""Questions that people ask of such measurements, each answered out of files: records, the ledger, published tables."""

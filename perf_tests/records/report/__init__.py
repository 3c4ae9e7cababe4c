"""One page over recorded runs: a pure function of their files, that opens from disk without a network."""

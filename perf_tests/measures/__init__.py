"""One loop over the rounds of a benchmark, and one file per way of measuring them."""

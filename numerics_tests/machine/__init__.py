"""Maps of the machine: its number formats, how its kernels add, what autocast casts, which flags change results."""

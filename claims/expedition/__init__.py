"""Recording on a GPU machine in slices, and a page that says which claims it confirmed."""

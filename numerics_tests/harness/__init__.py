"""What the tests are made of: claims and the faults they must catch, inputs, oracles, bounds, checks."""

"""What the benchmarks of one run share: device, models, session, progress, outcomes."""

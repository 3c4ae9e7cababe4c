"""What each way of looking adds to the rounds of a benchmark."""

"""Base and head in turns: two worker processes per launch pair serve the same cases, and one works at a time."""

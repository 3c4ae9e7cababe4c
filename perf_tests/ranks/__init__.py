"""A case on several ranks: how they share it, start together, keep one clock and hear each other."""

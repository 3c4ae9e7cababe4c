"""The suite started as a user starts it, many times and soon: for proofs and for tests of the tools."""

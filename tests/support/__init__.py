"""The suite started as a user starts it, many times and soon: for claims and for tests of the tools."""

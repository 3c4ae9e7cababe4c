"""Saved runs: journal -> record -> store -> compare. Standard library only, so that it all works without torch."""

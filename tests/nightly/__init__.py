"""Tests that take long, once a week."""

"""What is under test where it is not the suite's own model: found, built, described, checked."""

"""What is under test where it is not the suite's own model or optimizer: found, built, described, checked."""

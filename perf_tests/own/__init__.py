"""What is under test where it is not the suite's own: found, its repository, built, described, checked."""

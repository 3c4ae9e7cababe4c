"""The command line of the suite: a table of options, and the settings that they make."""

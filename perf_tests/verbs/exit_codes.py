"""What every verb returns to the shell; argparse returns 2 for a usage error by itself."""

FINE = 0
FINDINGS = 1
USAGE = 2
UNREADABLE = 3
"""Input that cannot be read or compared."""

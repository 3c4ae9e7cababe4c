"""What every verb returns to the shell, and what ends one early; argparse returns 2 for a usage error by itself."""

FINE = 0
FINDINGS = 1
USAGE = 2
UNREADABLE = 3
"""Input that cannot be read or compared."""
INTERRUPTED = 130
"""A shell's own after Ctrl-C."""


class RefusalError(Exception):
    """One sentence for the user, which goes to standard error, so that `--json` leaves only JSON on the other."""

    exit_code = UNREADABLE


class UsageError(RefusalError):
    """A choice that cannot be met, or an output that cannot be written."""

    exit_code = USAGE


class InterruptedByUserError(RefusalError):
    """Ctrl-C, after what was begun is undone."""

    exit_code = INTERRUPTED

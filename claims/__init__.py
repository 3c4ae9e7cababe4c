"""What the suite claims of itself, measured: `python -m claims` tries the claims of `table.py`, one after the other."""

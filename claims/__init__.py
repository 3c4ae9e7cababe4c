"""What the suite claims of itself, measured: one module for each claim, run as `python -m claims.NAME`.

Each prints its conditions, a table and last of all the claim with its verdict, and exits with 0 if the claim holds,
1 if it does not, 2 if it cannot be tried here. They measure time, so they are no tests: run them on a quiet machine.
"""

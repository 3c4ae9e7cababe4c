"""The last line of every proof, and its conditions."""

import os
import platform

import torch


def conclude(claim: str, holds: bool) -> int:
    """Print the verdict; the exit code."""
    print(f"claim: {claim}: {'holds' if holds else 'does not hold'}")
    return 0 if holds else 1


def gravest(*exit_codes: int) -> int:
    """Of several claims: one that fails, 1, outweighs one that cannot be tested yet, 2."""
    return max(exit_codes, key=(0, 2, 1).index)


def conditions(threads: int | None = None) -> str:
    """Machine, build and how busy the machine is: neighbours widen every interval."""
    load = os.getloadavg()[0]
    parts = [f"{platform.machine()}, {os.cpu_count()} CPUs", f"torch {torch.__version__}"]
    if threads is not None:
        parts.append(f"{threads} threads")
    return ", ".join([*parts, f"load {load:.1f} at the start"])

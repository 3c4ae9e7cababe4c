"""The suite as one package, in a checkout as in an installation: none of its folders' names meets one of yours."""

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parents[3])]

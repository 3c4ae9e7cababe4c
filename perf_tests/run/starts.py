"""How each rank was started, compared before anything is measured."""

import shlex
from dataclasses import asdict
from typing import Any

import pytest
import torch

from perf_tests.bench.stash import SETTINGS
from perf_tests.ranks.devices import device_in_words, gpu_of_this_rank
from perf_tests.ranks.peers import Peers
from perf_tests.run.joining import agreed


def compare_starts(config: pytest.Config, peers: Peers, source: str) -> None:
    """Raises pytest.UsageError where ranks were started with different options, code, torch or devices."""
    settings = config.stash[SETTINGS]
    facts = {
        "options": list(config.invocation_params.args),
        "code": source,
        "torch": torch.__version__,
        "device": device_in_words(torch.device(settings.device)),
        "settings": repr(sorted((name, value) for name, value in asdict(settings).items() if name != "device")),
    }
    all_facts = peers.share("facts", {**facts, "gpu": gpu_of_this_rank(torch.device(settings.device))})
    peers.gpus = len({found["gpu"] for found in all_facts} - {None})
    with agreed(peers, "compared"):
        for name in facts:
            other = next((rank for rank in peers.others if all_facts[rank][name] != all_facts[0][name]), None)
            if other is not None and peers.leads:
                raise pytest.UsageError(_difference(name, other, all_facts[0][name], all_facts[other][name]))


def _difference(name: str, rank: int, lead: Any, other: Any) -> str:
    words = {
        "options": f"options: {shlex.join(other)} there" if name == "options" else "",
        "code": "code: its checkout differs from rank 0's",
        "settings": "settings: what the options leave to the machine differs",
    }.get(name, f"{name}: {other} there, {lead} on rank 0")
    return f"Rank {rank} was started with different {words}; start all ranks alike."

"""How much of a card's memory is left for tensors, and whether a peak fits."""

from dataclasses import dataclass

from perf_tests.limits.datasheets import Gpu

# GDDR cards that correct errors in line keep a sixteenth for it (a T4 of 16 GiB shows 15, an L4 or A10 of 24 shows
# 22.5, an L40S of 48 shows 45); cards with HBM have the bits beside. On top the driver keeps about 1.5 % of any card:
# an A100 of 80 GiB shows 79.2, an H100 of 80 shows 79.1, an RTX 4090 of 24 shows 23.6.
CORRECTS_ERRORS_IN_LINE = ("T4", "A10", "A40", "L4", "L40", "L40S")
DRIVER_SHARE = 0.015

CONTEXT_BYTES = 500_000_000
"""CUDA context with PyTorch's kernels; 0.4 to 0.6 GB on the cards of the published tables."""

FRAGMENTATION_SHARE = 0.05
"""Of the peak, because the allocator cannot fill every block: a published step that needs 80.5 GB ran out of memory on
a card with room for 84.1 GB (kbjiang/cs336-assignment2-systems-mine, 2.7B at context 512)."""

FITS, MAY_NOT_FIT, DOES_NOT_FIT = "fits", "may not fit", "does not fit"


@dataclass(frozen=True)
class Room:
    bytes: int
    explanation: str

    def verdict(self, peak_bytes: int) -> str:
        """`may not fit` fits only if the allocator wastes less than `FRAGMENTATION_SHARE`."""
        if peak_bytes > self.bytes:
            return DOES_NOT_FIT
        return FITS if self.bytes_for(peak_bytes) <= self.bytes else MAY_NOT_FIT

    @staticmethod
    def bytes_for(peak_bytes: int) -> int:
        return round(peak_bytes * (1 + FRAGMENTATION_SHARE))


def room_on(gpu: Gpu) -> Room:
    in_line = 1 / 16 if gpu.name in CORRECTS_ERRORS_IN_LINE else 0.0
    kept_share = in_line + DRIVER_SHARE
    room_bytes = int(gpu.memory_bytes * (1 - kept_share)) - CONTEXT_BYTES
    return Room(
        room_bytes,
        f"{gpu.memory_bytes / 1e9:.1f} GB less {kept_share:.1%} for driver and error correction "
        f"and {CONTEXT_BYTES / 1e9:.1f} GB for the CUDA context",
    )

"""How the ranks of a case share its model and its batch: the axis of `--parallel`, its label and its identity."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Self

from perf_tests_suite.perf_tests.hardware.limits import BUCKETED, IN_BFLOAT16, SHARDED, VARIANTS

# What torchrun, or whoever started this process, says of its ranks. No torch.


@dataclass(frozen=True)
class Launched:
    """This rank among those that were started; by default alone."""

    rank: int = 0
    world: int = 1
    local_world: int = 1
    """Ranks on this machine."""
    local_rank: int = 0
    restarts: int = 0
    """How often torchrun has started all ranks again."""

    @property
    def is_rank0(self) -> bool:
        """Whether it plans, prints and saves."""
        return self.rank == 0

    @property
    def command(self) -> list[str]:
        """The words before a command that as many ranks run; on several machines each adds the address of the first."""
        machines = self.world // self.local_world
        of_machines = ["--nnodes", str(machines)] if machines > 1 else []
        return ["torchrun", *of_machines, "--nproc-per-node", str(self.local_world), "--no-python"]


def launched() -> Launched | None:
    """What torchrun says of this process; None where it was started alone."""
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return None
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return Launched(
        rank,
        world,
        local_world=int(os.environ.get("LOCAL_WORLD_SIZE", world)),
        local_rank=int(os.environ.get("LOCAL_RANK", rank)),
        restarts=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
    )


PARALLEL = ("none", *VARIANTS)
SCALING = ("strong", "weak")

OF_SOME_WAYS = {"--bucket-mb": BUCKETED, "--reshard": SHARDED}
"""Options that change nothing of other ways to share."""

_LABEL = re.compile(
    r"(?P<parallel>.+)-world(?P<world>\d+)(?P<weak>-weak)?(-bucket(?P<bucket>\d+)MiB)?(?P<kept>-no-reshard)?"
)


@dataclass(frozen=True)
class Sharing:
    """One way to share; fields with the names of the identity's are stored as they are."""

    parallel: str
    world: int
    """Ranks of the case: the first of those that were started."""
    scaling: str = "strong"
    """`strong` divides the batch among the ranks, `weak` gives each rank a whole one."""
    bucket_mb: int | None = None
    """MiB of gradients in one all-reduce; None is PyTorch's default, and for what has no buckets."""
    keeps_gathered: bool = False
    """Whether FSDP2 keeps gathered parameters until the backward pass, instead of gathering them twice."""

    @property
    def label(self) -> str:
        """`ddp-world2`; what is at its default adds nothing, so that a new choice renames no old case."""
        bucket = f"-bucket{self.bucket_mb}MiB" if self.bucket_mb is not None else ""
        weak, kept = "-weak" * (self.scaling == "weak"), "-no-reshard" * self.keeps_gathered
        return f"{self.parallel}-world{self.world}{weak}{bucket}{kept}"

    @classmethod
    def of(cls, label: str) -> Self:
        """The way of this label."""
        match = _LABEL.fullmatch(label)
        assert match is not None, label
        bucket = None if match["bucket"] is None else int(match["bucket"])
        scaling = "weak" if match["weak"] else "strong"
        return cls(match["parallel"], int(match["world"]), scaling, bucket, match["kept"] is not None)

    @classmethod
    def label_in(cls, identity: Mapping[str, Any]) -> str | None:
        """The label of the case of a row; None for one device."""
        if identity.get("parallel") is None:
            return None
        in_bytes = identity.get("bucket_bytes")
        bucket = in_bytes // 2**20 if isinstance(in_bytes, int) else None
        scaling, kept = identity["scaling"] or "strong", identity.get("reshard") is False
        return cls(identity["parallel"], identity["world"], scaling, bucket, kept).label

    @property
    def bucket_bytes(self) -> int | None:
        return None if self.bucket_mb is None else self.bucket_mb * 2**20

    @property
    def reshard(self) -> bool | None:
        return not self.keeps_gathered if self.parallel in SHARDED else None

    @property
    def reduce_dtype(self) -> str:
        """Dtype of the gradients on their way."""
        return "bfloat16" if self.parallel in IN_BFLOAT16 else "float32"

    @property
    def kept_shares(self) -> tuple[float, float]:
        """The shares of parameters and gradients, and of the optimizer's moments, that each rank keeps."""
        of_weights, of_moments = self.parallel in SHARDED, self.parallel in ("zero1", *SHARDED)
        return 1 / self.world if of_weights else 1.0, 1 / self.world if of_moments else 1.0

    @property
    def mesh(self) -> str:
        """Dimensions with their sizes; every variant has one."""
        return f"data={self.world}"

    @property
    def nodes(self) -> int:
        """Ranks fill a node before the next one."""
        return nodes_of(self.world)

    def why_unsupported(self, batch_size: int, device: str, gpus: int) -> str | None:
        """One sentence with the next step; None where the ranks that were started can run it."""
        if too_few := why_too_few(self.world, device, gpus):
            return too_few
        if self.scaling == "strong" and batch_size % self.world:
            return (
                f"{self.world} ranks cannot divide a batch of {batch_size} evenly; choose a --batch-size that "
                f"{self.world} divides, or --scaling weak."
            )
        return None


def nodes_of(world: int) -> int:
    """Machines of so many ranks, which fill one before the next."""
    return -(-world // max(1, (launched() or Launched()).local_world))


def backend_of(device: str) -> str:
    """What carries bytes between ranks."""
    return "nccl" if device == "cuda" else "gloo"


def why_too_few(world: int, device: str, gpus: int) -> str | None:
    """One sentence with the next step where too few ranks were started, or they have too few GPUs; else None."""
    started = launched() or Launched()
    if world > started.world:
        return (
            f"--world {world} needs {world} ranks, and {started.world} were started; give torchrun "
            f"--nproc-per-node {world}, or choose at most --world {started.world}."
        )
    if device == "cuda" and gpus < started.world:
        return (
            f"{started.world} ranks need a GPU each, and they have {gpus}; give torchrun --nproc-per-node "
            f"{max(1, started.local_world * gpus // started.world)}, or choose --device cpu."
        )
    return None


def why_without_effect(option: str, parallel: Sequence[str]) -> str | None:
    """One sentence where an option of some ways is given without any of them."""
    ways = OF_SOME_WAYS[option]
    words = f"{option} changes {' and '.join(ways)} alone; choose one of them with --parallel, or drop the option."
    return None if set(ways) & set(parallel) else words


def labels(
    parallel: Sequence[str],
    worlds: Sequence[int],
    scalings: Sequence[str],
    buckets: Sequence[int],
    reshard: Sequence[str],
) -> tuple[str | None, ...]:
    """The axis: each combination once that makes a difference, None for one device."""
    found: list[str | None] = []
    for name in parallel:
        if name == "none":
            found.append(None)
            continue
        ways = (buckets if name in BUCKETED and buckets else (None,), reshard if name in SHARDED else ("yes",))
        for world in worlds:
            of_world = product(scalings if world > 1 else ("strong",), *ways)
            found += (Sharing(name, world, scaling, bucket, kept == "no").label for scaling, bucket, kept in of_world)
    return tuple(dict.fromkeys(found))

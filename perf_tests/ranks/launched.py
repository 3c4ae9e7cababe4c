"""What torchrun, or whoever started this process, says of its ranks. No torch."""

import os
from dataclasses import dataclass


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
    def leads(self) -> bool:
        """Whether it plans, prints and saves."""
        return self.rank == 0

    @property
    def command(self) -> list[str]:
        """The words that start pytest on as many ranks; on several machines each adds the address of the first."""
        machines = self.world // self.local_world
        of_machines = ["--nnodes", str(machines)] if machines > 1 else []
        return ["torchrun", *of_machines, "--nproc-per-node", str(self.local_world), "-m", "pytest"]


def launched() -> Launched | None:
    """None where this process was started alone."""
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

"""Causal attention by itself, without a model."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from perf_tests_suite.perf_tests.cases.case import Case
from perf_tests_suite.perf_tests.cases.settings import Settings
from perf_tests_suite.perf_tests.cases.sharing import backend_of, nodes_of, why_too_few
from perf_tests_suite.perf_tests.hardware.limits import FLOAT32_BYTES, AttentionWork, Work
from perf_tests_suite.perf_tests.phases import AttentionIdentity, CollectiveIdentity
from perf_tests_suite.perf_tests.user_code.given import label
from perf_tests_suite.perf_tests.user_code.named import from_its_repository

ATTENTION_BATCH_SIZE = 8


@dataclass(frozen=True)
class AttentionCase(AttentionIdentity, Case):
    """Causal attention alone, without heads: query, key and value of shape (batch, sequence, head width)."""

    axes: ClassVar = {
        "head_dim": "head_dims", "sequence_length": "sequence_lengths", "precision": "attention_alone_precisions",
        "attention": "attention_alone_implementations",
    }  # fmt: skip

    @classmethod
    def of(cls, phase: str, axes: dict[str, Any], settings: Settings) -> Self:
        values = {name: axes[name] for name in cls.axes}
        cache = "cold" if settings.cold_cache else None
        return cls(phase=phase, batch_size=ATTENTION_BATCH_SIZE, device=settings.device_type, cache=cache, **values)

    @staticmethod
    def id_of(head_dim: int, sequence_length: int, precision: str, attention: str) -> str:
        """`d64-seq1024-fp32-naive`."""
        return f"d{head_dim}-seq{sequence_length}-{precision}-{label(attention)}"

    def identity(self) -> dict[str, Any]:
        return asdict(self) | {"attention": from_its_repository(self.attention)}

    def rounds(self, settings: Settings) -> int:
        return settings.attention_alone_rounds

    @property
    def tokens(self) -> int:
        return self.batch_size * self.sequence_length

    @property
    def query_shape(self) -> tuple[int, ...]:
        return (self.batch_size, self.sequence_length, self.head_dim)

    @property
    def element_bytes(self) -> int:
        return 2 if self.precision.endswith("-tensors") else FLOAT32_BYTES

    @property
    def residual_tensor_bytes(self) -> int:
        return self.tokens * self.head_dim * self.element_bytes

    @property
    def least_bytes(self) -> int:
        """Query, key, value and output; in a backward pass also the gradients of all four."""
        return (8 if self.phase_row.has_backward else 4) * self.residual_tensor_bytes

    @property
    def resident_bytes(self) -> int:
        return 8 * self.residual_tensor_bytes + 2 * self.element_bytes * self.batch_size * self.sequence_length**2

    @property
    def work(self) -> Work:
        return AttentionWork(self.batch_size, self.sequence_length, self.head_dim)

    @property
    def built_from(self) -> tuple[Any, ...]:
        return (self.head_dim, self.sequence_length, self.attention, self.device)


# One exchange between ranks, without a model.


@dataclass(frozen=True)
class CollectiveCase(CollectiveIdentity, Case):
    """One exchange between ranks, in float32."""

    axes: ClassVar = {"collective": "collectives", "message_bytes": "message_sizes", "world": "worlds"}
    precision = "fp32"
    """The numbers that it adds up."""
    attention = None

    @classmethod
    def of(cls, phase: str, axes: dict[str, Any], settings: Settings) -> Self:
        device, values = settings.device_type, {name: axes[name] for name in cls.axes}
        nodes, backend = nodes_of(axes["world"]), backend_of(device)
        return cls(phase=phase, nodes=nodes, backend=backend, dtype="float32", device=device, **values)

    @staticmethod
    def id_of(collective: str, message_bytes: int, world: int) -> str:
        """`all_reduce-1MB-world2`: bytes as `--message-size` takes them, in the largest unit that divides them."""
        units = (("GB", 10**9), ("GiB", 2**30), ("MB", 10**6), ("MiB", 2**20), ("KB", 10**3), ("KiB", 2**10), ("B", 1))
        size = next(f"{message_bytes // unit}{name}" for name, unit in units if message_bytes % unit == 0)
        return f"{collective}-{size}-world{world}"

    def identity(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def ranks(self) -> int:
        return self.world

    @property
    def elements_of_a_rank(self) -> int:
        """Elements of a message that all ranks share evenly: what does not divide is left out, as in nccl-tests."""
        return self.message_bytes // (FLOAT32_BYTES * self.world)

    @property
    def exchanged_bytes(self) -> int:
        return FLOAT32_BYTES * self.world * self.elements_of_a_rank

    @property
    def built_from(self) -> tuple[Any, ...]:
        return (self.collective, self.world, self.device)

    @property
    def least_bytes(self) -> int:
        """What is given and what is taken, at most."""
        return 2 * self.exchanged_bytes

    def why_unsupported_on_ranks(self, gpus: int) -> str | None:
        if self.elements_of_a_rank == 0:
            return (
                f"{self.message_bytes} bytes are less than a float32 for each of {self.world} ranks; choose "
                f"--message-size {FLOAT32_BYTES * self.world}B or more."
            )
        return why_too_few(self.world, self.device, gpus)

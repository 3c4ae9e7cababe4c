"""Published peaks of memory beside predictions of them, from `published/memory.csv`.

The same cell is published with 26, 51, 60 and 64 GB, each right for its code. So each source has its conditions, read
from its code, in `published/memory_conditions.csv`: when it clears gradients, how its optimizer runs, whether its
figure is of the first step, what it still holds from the pass before, how far autocast reaches, what its own model
saves more, and how many copies of the weights its figure counts as whole blocks of the allocator. None is fitted."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from claims.published import published_rows
from perf_tests_suite.model.sizes import SIZES, ModelConfig
from perf_tests_suite.perf_tests.cases.language_model import LanguageModelCase
from perf_tests_suite.perf_tests.hardware.datasheets import HOPPER_MAJOR, libraries_on
from perf_tests_suite.perf_tests.hardware.limits import FLOAT32_BYTES
from perf_tests_suite.perf_tests.phases import FIRST_STEP, FULL_STEP
from perf_tests_suite.perf_tests.predict.allocator import CachingAllocator
from perf_tests_suite.perf_tests.predict.counters import counters_of
from perf_tests_suite.perf_tests.predict.parts import WEIGHT_COPIES


def unsplit_weight_bytes(config: ModelConfig) -> int:
    """Bytes beyond the weights themselves, on a GPU, once they are there."""
    d_model, d_ff, tables = config.d_model, config.d_ff, [config.vocab_size * config.d_model]
    block = 4 * [d_model * d_model] + 3 * [d_model * d_ff]
    sizes = [FLOAT32_BYTES * numbers for numbers in (*tables, *(config.num_layers * block), *tables)]
    return whole_block_bytes(sizes) - sum(sizes)


def whole_block_bytes(sizes: Iterable[int]) -> int:
    """Return the bytes of the allocator's blocks for tensors that come one after the other and stay, as weights do."""
    allocator = CachingAllocator()
    for size in sizes:
        allocator.allocate(size)
    return allocator.peaks().allocated_bytes


TABLE, CONDITIONS = "memory.csv", "memory_conditions.csv"

# The bytes of float16 are those of bfloat16; TF32 is a mode of float32.
PRECISIONS = {"fp32": "fp32", "tf32(labelled fp32)": "fp32", "bf16_amp": "bf16", "fp16_amp": "bf16"}

CHECKPOINT = "full_step_peak:checkpoint group="

ANGLES_AND_MASK = "angles of each head and the mask of each score"
"""What one source's model saves beside the course's, as its conditions name it."""

TORCH_THEN = "2.9"
"""Any version before 2.12 has the same rule of workspaces; the tables name none."""

_HOPPER = ("H100", "H200", "H800", "H20")


@dataclass(frozen=True)
class PublishedPeak:
    """One cell of a published table, and the conditions of its code. `bytes` is None for an empty cell."""

    source: str
    gpu: str
    mode: str
    precision: str
    """The precision as the source calls it."""
    case: LanguageModelCase
    bytes: float | None
    last_digit_bytes: float
    """What one more in the last printed digit is."""
    conditions: dict[str, str]

    @property
    def name(self) -> str:
        case = self.case
        return f"{self.source.partition(':')[0]} {self.mode} {case.size}-ctx{case.context_length}-{case.precision}"


def published_peaks() -> list[PublishedPeak]:
    """Every row of the table whose conditions are known, empty cells included."""
    conditions = published_rows(CONDITIONS)
    cells = []
    for row in published_rows(TABLE):
        mode = row["mode"].partition(":")[0]
        found = next(
            (known for known in conditions if known["source"] in row["source"] and known["mode"] == mode), None
        )
        is_eager_model = row["object"].startswith("model") and row["compiled"] == "no"
        if found is not None and is_eager_model and not row["mode"].endswith("nested"):
            cells.append(_cell(row, found))
    return cells


def _cell(row: dict[str, str], conditions: dict[str, str]) -> PublishedPeak:
    shape, mode, context = (int(row["d_model"]), int(row["n_layers"])), row["mode"], int(row["context"])
    size, config = next((name, c) for name, c in SIZES.items() if (c.d_model, c.num_layers) == shape)
    phases = {"forward_peak(no_grad)": "inference", "forward_peak(with grad)": "forward_backward"}
    trains = mode.startswith("full_step") or "in training" in mode
    case = LanguageModelCase(
        phase=phases.get(mode, FULL_STEP), size=size, config=config.at_context(context), context_length=context,
        batch_size=int(conditions["batch"]), precision=PRECISIONS[row["precision"]], attention="naive",
        execution="eager", checkpoint=mode.removeprefix(CHECKPOINT) if mode.startswith(CHECKPOINT) else "none",
        optimizer=conditions["optimizer"] if trains else None, device="cuda", model="ours",
    )  # fmt: skip
    unit_bytes = int(conditions["unit_bytes"])
    printed_bytes = float(row["value"]) * unit_bytes if row["value"] else None
    last_digit_bytes = unit_bytes / 10 ** len(row["value"].partition(".")[2])
    return PublishedPeak(
        row["source"], row["gpu"], mode, row["precision"], case, printed_bytes, last_digit_bytes, conditions
    )


def predicted_bytes(cell: PublishedPeak) -> int:
    """The peak of the published code: the suite's own, under the conditions of the cell."""
    conditions, case = cell.conditions, cell.case
    zero_grad = (conditions["zero_grad"] or "before_forward").replace("_", "-")
    phase = FIRST_STEP if conditions["first_step"] == "yes" else case.phase
    parts = {
        part.part: part.bytes_by_category for part in counters_of(replace(case, phase=phase, zero_grad=zero_grad)).parts
    }
    if cell.mode.startswith("forward"):
        names = {"inference", "forward"} | ({"loss"} if conditions["loss"] == "in forward" else set())
        parts = {name: held for name, held in parts.items() if name in names}
    if conditions["autocast_until"] == "step":  # inside of autocast its copies of the weights live until it is left
        copies = max(held.get(WEIGHT_COPIES, 0) for held in parts.values())
        parts = {name: {**held, WEIGHT_COPIES: copies} for name, held in parts.items()}
    peaks = {name: sum(held.values()) for name, held in parts.items()}
    if conditions["saves_more"] == ANGLES_AND_MASK:
        # Each block also saves cos and sin for each head's queries and keys, and a Boolean for each score.
        angles_bytes = 2 * case.tokens * case.config.d_model * FLOAT32_BYTES
        mask_bytes = case.tokens * case.config.num_heads * case.context_length
        saved_bytes = case.config.num_layers * (angles_bytes + mask_bytes)
        peaks = {name: peak + saved_bytes * (name != "optimizer") for name, peak in peaks.items()}
    logits_bytes = case.tokens * case.config.vocab_size * (4 if case.precision == "fp32" else 2)
    held_beside = conditions["held_beside"]
    beside = logits_bytes if held_beside in ("former pass", "former logits") else 0
    if held_beside == "former pass":
        beside += counters_of(replace(case, phase="forward", optimizer=None)).saved_bytes
    beside += cublas_workspace_bytes(cell.gpu, threads=1 if "forward" in cell.mode else 2)
    return max(peaks.values()) + beside + int(conditions["whole_blocks"]) * unsplit_weight_bytes(case.config)


def cublas_workspace_bytes(gpu_name: str, threads: int) -> int:
    """cuBLAS's own memory from the same allocator; forward and backward pass run in a thread each."""
    major = HOPPER_MAJOR if gpu_name.startswith(_HOPPER) else None
    return threads * libraries_on(major, TORCH_THEN, {}).workspace_bytes

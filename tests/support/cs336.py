"""What answers the course's questions in a test: the repository's tables beside records that are made up."""

from pathlib import Path

from perf_tests.records.record import Json
from perf_tests.report.cs336_sources import LEDGER, ROOT, Counted, Figure, PeakBeside, Sources
from tests.support import synthetic
from tests.support.synthetic import BACKWARD, FORWARD, FULL_STEP, record, timed, traced

TIMES = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
COUNTED = Counted(
    {
        "first_steps": [Figure(("medium", "128", "fp32"), "here: batch 2, first (GB)", "7.0")],
        "orders_of_clearing": [Figure(("2.7B", "128"), "here: before-step (GB)", "27.0")],
        "lines_of_the_residual_stream": [Figure(("2.7B", "128", "model/transformer.py:100"), "here: made", "3")],
        "peaks_of_ranks": [Figure(("zero1",), "here (GB)", "32.11")],
        "sent_by_ranks": [Figure(("fsdp2",), "here (GB)", "11.93")],
        "leaderboard": [Figure(("2 x B200",), "here", "91.7 GB, 0.65 to 1.15 s")],
        "norms": [Figure(("about 1000",), "here: low", "all zero"), Figure(("about 1000",), "here: high", "within")],
    },
    [PeakBeside("write-up 003", "2.7B", 128, "fp32", "full_step_peak", "60.0", "GB", 60.25)],
)


def checkout(root: Path) -> Path:
    """Link the repository's tables into an empty folder, which has no records then."""
    for name in ("published", LEDGER):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(ROOT / name)
    return root


def with_record(root: Path, data: Json, machine: str = "some-machine", number: int = 1) -> Sources:
    """Lay a record beside the tables, and beside others with another number."""
    synthetic.write_record(root / ".benchmarks" / machine / f"{number:04}_run.json", data)
    return Sources(root, COUNTED)


def everything() -> Json:
    """A record of every case and pass that a question asks for, of a size of the course."""
    course: Json = {"size": "small", "context_length": 128, "num_layers": 12, "d_model": 768}
    rows = [
        timed(
            f"{phase}-{name}-{execution}", [seconds * factor for seconds in TIMES], phase=phase, precision=name,
            execution=execution, first_round_seconds=2.5, tflops_per_second=0.5,
            part_seconds={"forward": [2.0] * 6, "backward": [1.5] * 6, "optimizer": [0.25 * factor] * 6}, **course,
        )
        for phase, factor in (("forward", 1.0), ("backward", 2.0), ("forward_backward", 3.0), ("full_step", 4.0))
        for name in ("fp32", "bf16")
        for execution in ("eager", "compiled")
    ]  # fmt: skip
    rows += [timed("forward-256", TIMES, **{**course, "context_length": 256})]
    rows += [
        synthetic.timed_attention(
            [seconds * factor * length for seconds in TIMES], phase=f"attention_{phase}", attention=name, head_dim=16,
            sequence_length=length, first_round_seconds=9.0,
        )
        for phase, factor in (("forward", 1.0), ("backward", 2.0))
        for name in ("naive", "compiled", "sdpa")
        for length in (256, 1024)
    ]  # fmt: skip
    rows += [
        timed(way, TIMES, phase="full_step", parallel=way, world=2, exposed_communication_seconds=0.0373,
              exposed_communication_interval=[0.0225, 0.0563], **course)
        for way in ("ddp-naive", "ddp-flat", "ddp", "zero1", "fsdp2")
    ]  # fmt: skip
    rows += [timed("optimizer", TIMES, phase="optimizer", **course)]
    rows += [synthetic.timed_collective(1_000_000, collective="all_reduce")]
    of_step = traced(FULL_STEP, phase="full_step", **course)
    region = {"launches": 4, "share_of_kernel_time": 0.5, "seconds": 2.0, "is_backward": True}
    of_step["values"]["regions"] = [
        {"region": "feed_forward", "seconds_by_kind": {"elementwise": 0.46, "matrix product": 1.54}, **region},
        {"region": "optimizer", "seconds_by_kind": {"elementwise": 2.0}, **region},
    ]
    of_forward = traced(FORWARD, **course)
    of_forward["values"]["idle_gaps"] = {"median_seconds": 3e-6}
    passes = [of_forward, traced(BACKWARD, phase="backward", **course), of_step, synthetic.warmed(**course)]
    of = {"forward": FORWARD, "backward": BACKWARD, "full_step": FULL_STEP}
    passes += [synthetic.remembered(name, phase=phase, **course) for phase, name in of.items()]
    return {**record(rows), "passes": passes}

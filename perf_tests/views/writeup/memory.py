"""What exact counters and memory passes answer: peaks, what mixed precision costs, the largest tensors, attention."""

from perf_tests.views.tables.cells import finite, name_of
from perf_tests.views.tables.digits import GIB, MIB
from perf_tests.views.writeup.sources import Answer, Shape, Sources, question

BATCH, ATTENTION_BATCH = 4, 8
FLOAT_BYTES = 4
AGREE = 0.001
"""Relative difference of two peaks that count as the same."""
CONTEXTS = (128, 256, 512, 1024)
MEASURED_MODEL = "2.7B"
"""The size whose memory the course asks for."""
LEDGER_COMMAND = "pytest perf_tests/test_counters.py"


@question("Why can mixed precision be slower?", LEDGER_COMMAND)
def launches_of_mixed_precision(sources: Sources) -> Answer:
    counts = [sources.counted("forward", f"small-ctx128-{name}-naive", "kernel_launches") for name in ("fp32", "bf16")]
    return Answer(
        f"Autocast adds casts, each a launch: {counts[1]} instead of {counts[0]} in a forward pass of `small`, "
        f"{counts[1] / counts[0] - 1:+.0%}. A model too small to keep its GPU busy takes as long as its launches.",
        sources.ledger_name,
    )


@question("Why can mixed precision take more memory?", LEDGER_COMMAND)
def memory_of_mixed_precision(sources: Sources) -> Answer:
    def peak(phase: str, context: int, precision: str) -> float:
        return sources.counted(phase, f"{MEASURED_MODEL}-ctx{context}-{precision}-naive", "peak_bytes") / GIB

    added = peak("inference", 512, "bf16") - peak("inference", 512, "fp32")
    changes = [f"{peak('forward', t, 'bf16') - peak('forward', t, 'fp32'):+.2f} GiB at {t}" for t in CONTEXTS]
    return Answer(
        f"Autocast keeps a 2-byte copy of every weight that a product reads, at any context: a forward pass of "
        f"`{MEASURED_MODEL}` without gradients peaks {added:.2f} GiB higher. It halves activations, which grow with "
        f"the context. With gradients the peak changes by {', '.join(changes)}.",
        sources.ledger_name,
    )


@question(
    "Which tensor is the largest, attention's or the feed-forward's?",
    "python -m perf_tests predict --size 2.7B --context 512 --gpu H100",
)
def largest_tensor(sources: Sources) -> Answer:
    shape = sources.shapes[MEASURED_MODEL]
    unit = BATCH * FLOAT_BYTES / MIB
    rows = [
        f"{t}: scores {unit * shape.num_heads * t**2:g} MiB, feed-forward {unit * shape.d_ff * t:g} MiB"
        for t in CONTEXTS
    ]
    crossovers = [f"{size} {crossover(of):g}" for size, of in sources.shapes.items()]
    return Answer(
        f"Both, by the context T: scores are B heads T T, the feed-forward tensor is B T d_ff, so they are equal at "
        f"T = d_ff / heads, which is {', '.join(crossovers)}. Of `{MEASURED_MODEL}` in fp32 at batch {BATCH}, at "
        f"{'; '.join(rows)}.",
        "closed forms of the shapes in published/e2e_timing.csv",
    )


def crossover(shape: Shape) -> float:
    """The context at which one layer's scores are as large as its feed-forward tensor."""
    return shape.d_ff / shape.num_heads


@question("How large is one tensor of the residual stream?", "pytest perf_tests --memory --phase forward")
def residual_tensor(sources: Sources) -> Answer:
    shape = sources.shapes[MEASURED_MODEL]
    said = [f"{BATCH * context * shape.d_model * FLOAT_BYTES / MIB:g} MiB at {context}" for context in CONTEXTS]
    return Answer(
        f"B T d_model numbers of 4 bytes: of `{MEASURED_MODEL}` at batch {BATCH} {', '.join(said)}.",
        "closed form of the shape in published/e2e_timing.csv",
    )


@question("How does the peak of a training step grow with the context?", LEDGER_COMMAND)
def peak_of_a_step(sources: Sources) -> Answer:
    def peaks(phase: str) -> str:
        ids = [f"{MEASURED_MODEL}-ctx{context}-fp32-naive" for context in CONTEXTS]
        return ", ".join(f"{sources.counted(phase, case, 'peak_bytes') / GIB:.2f}" for case in ids)

    return Answer(
        f"Peaks of `{MEASURED_MODEL}` in fp32 at contexts {', '.join(map(str, CONTEXTS))}: forward {peaks('forward')} "
        f"GiB, full step {peaks('full_step')} GiB. A step holds weights, gradients and AdamW's state at any context; "
        "it hardly grows until what is saved for the backward pass outweighs what the optimizer adds.",
        sources.ledger_name,
    )


@question("How does what attention saves grow with the length?", LEDGER_COMMAND)
def attention_over_length(sources: Sources) -> Answer:
    said = []
    for name in ("naive", "sdpa"):
        squares, grows = squares_saved(sources, name)
        said.append(f"{name} saves {squares:.2f} matrices of L x L and {grows:.1f} x as much at twice the length")
    return Answer(
        f"Of attention alone at width 64, in float32 matrices for each of the batch: {'; '.join(said)}. The odd part "
        "is the mask, one byte a score and one for the whole batch. A fused kernel computes the scores again in the "
        "backward pass and saves none of them.",
        sources.ledger_name,
    )


def squares_saved(sources: Sources, attention: str) -> tuple[float, float]:
    """(k of k L^2 + c L d numbers, from two lengths, and growth from one to the other)."""
    short, long = 8192, 16384
    small, large = (
        sources.counted("attention_backward", f"d64-seq{length}-fp32-{attention}", "saved_bytes")
        / (ATTENTION_BATCH * FLOAT_BYTES)
        for length in (short, long)
    )
    # Subtracting twice the short one removes the linear part.
    return abs(large - 2 * small) / (long**2 - 2 * short**2), large / small


@question(
    "Where does attention alone run out of memory?",
    "python -m perf_tests predict --head-dim 64 --sequence-length all --gpu T4",
)
def attention_that_does_not_fit(sources: Sources) -> Answer:
    peaks = [
        sources.counted("attention_backward", f"d{width}-seq16384-fp32-{name}", "peak_bytes") / GIB
        for name, width in (("naive", 16), ("naive", 128), ("sdpa", 128))
    ]
    square = ATTENTION_BATCH * 16384**2 * FLOAT_BYTES / GIB
    return Answer(
        f"At 16384 tokens and batch {ATTENTION_BATCH} one matrix of scores is {square:g} GiB, and a backward pass "
        f"holds up to {peaks[0]:.1f} GiB at width 16 and {peaks[1]:.1f} GiB at width 128: width hardly matters. Fused, "
        f"{peaks[2]:.2f} GiB.",
        sources.ledger_name,
    )


@question("Does the measured peak agree with the predicted one?", "pytest perf_tests --memory")
def measured_against_counted(sources: Sources) -> Answer | None:
    found = sources.passed("memory")
    peaks = [
        (measured, predicted, cell)
        for cell in found.cells
        if (measured := finite(cell.info.get("peak_allocated_bytes")))
        and (predicted := finite(cell.info.get("predicted_peak_bytes")))
    ]
    if not peaks:
        return None
    measured, predicted, cell = max(peaks, key=lambda peak: abs(peak[0] / peak[1] - 1))
    close = sum(abs(peak / expected - 1) <= AGREE for peak, expected, _ in peaks)
    return found.says(
        f"Of {len(peaks)} cases {close} agree within {AGREE:.1%}. The largest difference is "
        f"{abs(measured - predicted):,.0f} bytes of {predicted:,.0f}, {abs(measured / predicted - 1):.2%}, in "
        f"{name_of(cell)}. Of libraries' workspaces only cuBLAS's are predicted."
    )

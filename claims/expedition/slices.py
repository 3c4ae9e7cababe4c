"""What an expedition runs: one table of slices, and of the steps in each."""

from dataclasses import dataclass

MODELS = "claims.expedition.on_device"

SMALLEST = (
    "--size tiny --context 8,16 --precision fp32 --attention naive --execution eager --phase forward --head-dim 16 "
    "--sequence-length 16 --batch-size 2 --rounds 2 --warmup-rounds 1 --threads 1"
)
"""What replaces the shapes of a step on a CPU."""


@dataclass(frozen=True)
class Step:
    """`command` follows `python -m`; `{device}`, `{storage}` and the slice's `{minutes}` left are filled in."""

    name: str
    question: str
    command: str
    on_cpu: str = ""
    """Options that make it small there."""
    records: bool = False
    """Whether it is done once there is a record; any other step is done by its exit code."""
    judges: bool = False
    """Whether 1 is a result too, as 0 is: what failed is not run again until it passes by chance."""
    needs_git: bool = False
    """Whether it takes a base from the history; a copy of the suite without one becomes a repository for it."""


def check(name: str, question: str) -> Step:
    """A check of `on_device.py`."""
    return Step(name, question, f"claims.expedition.on_device {name} --device {{device}}")


def suite(name: str, question: str, options: str = "") -> Step:
    """A run of the suite, which the end of the slice cuts between two cases and the next slice resumes."""
    always = (
        "--device {device} --benchmark-storage file://{storage} --resume --resume-any-driver --time-limit {minutes}"
    )
    return Step(name, question, f"pytest perf_tests {always} {options}", SMALLEST, records=True)


MODEL_ALONE = '--precision bf16 --phase forward,full_step -k "not attention"'
LONG_SDPA = "--precision bf16 --phase forward,full_step --attention sdpa --head-dim 64 --sequence-length 4096"
SHORT_SDPA = "--precision bf16 --phase forward,backward --attention sdpa --sequence-length 256,1024 -k attention"
ASSERTS = suite(
    "device-assert",
    "Does an error that makes the GPU unusable cost its own case alone?",
    f"--model {MODELS}:AssertsAt256 --size tiny --context 128,256,512 {MODEL_ALONE} --phase forward",
)
RECORD = suite("record", "A record of every kind of case, as small as says something",
               "--size small,large --context 128,1024 --precision fp32,bf16 --phase forward,backward,full_step "
               "--head-dim 64 --sequence-length 1024,4096,16384 --attention naive,sdpa --kernels")  # fmt: skip
MAIN = suite("main", "The default grid without the phases that others hold",
             "--phase forward,backward,full_step")  # fmt: skip

SLICES: dict[str, tuple[Step, ...]] = {
    "1": (
        check("facts", "Which machine is this, and what are its ceilings?"),
        check("queue", "Do events, the wall clock and the profiler agree behind a full queue?"),
        suite("smoke", "Does each kind of case run?",
              "--size tiny --context 128,512 --head-dim 64 --sequence-length 1024 --rounds 5"),
    ),
    "2": (RECORD,),
    "3": (
        suite("waits", "Is a host that sleeps inside a round flagged?",
              f"--model {MODELS}:Sleeps --size medium --context 1024 {MODEL_ALONE} --phase forward"),
        suite("5-rounds", "A case after 5 warm-up rounds", f"--size small --context 512 {MODEL_ALONE}"),
        suite("300-rounds", "The same after 300 warm-up rounds",
              f"--size small --context 512 --warmup-rounds 300 {MODEL_ALONE}"),
        suite("alone", "A case alone", f"{LONG_SDPA} -k attention"),
        suite("after-large", "The same case after a large model",
              f'{LONG_SDPA} --size xl --context 512 -k "attention or full_step"'),
        suite("sdpa", "Which kernel does fused attention take at each head width?",
              "--precision fp32,bf16 --attention sdpa --sequence-length 1024 --rounds 20 -k attention"),
        suite("warm-cache", "Attention with warm caches", SHORT_SDPA),
        suite("cold-cache", "The same with the last-level cache flushed before each round",
              f"{SHORT_SDPA} --cold-cache"),
    ),
    "4": (
        Step("numerics", "Do the numerics hold on this device?",
             "pytest numerics_tests --device {device} --hypothesis-profile ci -q -p no:cacheprovider",
             on_cpu="--hypothesis-profile quick -k softmax", judges=True),
        Step("gate", "Does the gate find no difference between equal sides?",
             "pytest perf_tests --device {device} --against HEAD --gate-minutes 4 --benchmark-storage file://{storage} "
             f"--size small --context 128,512 {MODEL_ALONE}", on_cpu=SMALLEST, judges=True, needs_git=True),
    ),
    "5": (
        suite("overflow", "Does a batch that overflows cost its own case alone?",
              f"--model {MODELS}:Unknown --size large --context 128,1024 --batch-size 64 {MODEL_ALONE}"),
        suite("10B", "Which phases of the largest size fit?",
              '--size 10B --context 128 --precision bf16 --phase inference,full_step --rounds 3 -k "not attention"'),
        ASSERTS,
        ASSERTS,  # again, as a user resumes the run that the dead device ended
        suite("longest", "Does attention over 16384 tokens run?",
              "--precision fp32 --sequence-length 16384 --head-dim 64 --rounds 10 -k attention"),
        suite("flex", "Does flex attention run?",
              "--precision bf16 --attention flex --head-dim 16,64 --sequence-length 1024 --rounds 20 -k attention"),
    ),
    "6": (
        suite("executions", "What do compilation and CUDA graphs gain?",
              "--size small,large --context 1024 --precision bf16 --execution eager,compiled,reduce-overhead "
              '--phase full_step -k "not attention"'),
        suite("passes", "Where do time and memory go?",
              f"--kernels --memory --size small,large --context 512 {MODEL_ALONE}"),
        suite("study", "How many warm-up rounds are enough?",
              '--warmup-study --size small --context 256 --precision bf16 --phase full_step -k "not attention"'),
    ),
    "7": (MAIN,),
    "8": (MAIN,),
}  # fmt: skip

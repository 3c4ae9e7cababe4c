"""Why a case has no timing: judged before it is tried, or read from the error that ended it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pytest
import torch

from model.compilation import why_cannot_compile
from model.precision import PRECISIONS
from model.transformer import blocks_per_checkpoint
from perf_tests.cases import AttentionCase, Case, CollectiveCase, LanguageModelCase
from perf_tests.counting.needed_bytes import needed_bytes
from perf_tests.identity import DIMENSIONS
from perf_tests.instruments.device import Device
from perf_tests.instruments.device_errors import is_beyond_device, is_out_of_memory, words_of
from perf_tests.own.attention import attention_named, is_known
from perf_tests.records.record import OUTCOMES, Json, identity_of

DOES_NOT_FIT = ("out_of_memory", "would_not_fit")


class ImpossibleError(Exception):
    """A case was measured faster than its machine can be; the message gives the limit and the likely cause."""


@dataclass(frozen=True)
class Outcome:
    """Why a case has no timing."""

    outcome: str
    reason: str
    needed_bytes: int | None = None
    available_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome {self.outcome!r} is not known; it must be one of {', '.join(OUTCOMES)}.")

    @property
    def in_words(self) -> str:
        return f"{OUTCOMES[self.outcome]}: {self.reason}"

    def as_row(self, case_id: str, case: Case, rounds: Sequence[float]) -> Json:
        """The row of the record; `rounds` are the seconds measured before the case ended."""
        return {"id": case_id, **case.identity(), **asdict(self), "rounds": list(rounds)}


KILLED = Outcome(
    "process_died",
    "the process was killed twice while this case ran, by a signal that it cannot name: from outside, or for want of "
    "memory.",
)


RANK_DIED = Outcome(
    "process_died",
    "a rank died twice while this case ran, or torchrun was told to end; what torchrun says above has its exit code.",
)


def why_unsupported(case: Case, device: torch.device) -> Outcome | None:
    """What the device or the model lacks; None where nothing."""
    if isinstance(case, CollectiveCase):
        return None
    reason = PRECISIONS[case.precision].why_unsupported(device)
    if reason is None and is_known(case.attention):
        head_dim = case.head_dim if isinstance(case, AttentionCase) else case.config.head_dim
        reason = attention_named(case.attention).why_unavailable(device, head_dim)
    if reason is None and isinstance(case, LanguageModelCase):
        if case.replays_cuda_graphs and device.type != "cuda":
            reason = f"--execution {case.execution} replays CUDA graphs, and a {device.type.upper()} has none; "
            reason += "choose compiled."
        elif case.execution != "eager":
            reason = why_cannot_compile(device)
        if reason is None and case.model == "ours" and blocks_per_checkpoint(case.checkpoint) > case.config.num_layers:
            reason = f"--checkpoint {case.checkpoint} is more blocks than its {case.config.num_layers}."
        if reason is None and case.row.trains and not case.updates and PRECISIONS[case.precision].scales_loss:
            reason = f"--zero-grad {case.zero_grad} leaves a loss scaler no gradients; choose another order."
    return None if reason is None else Outcome("unsupported", reason)


def why_unsupported_on_ranks(case: Case, gpus: int) -> Outcome | None:
    """What the ranks that were started, or the way in which they share the case, cannot do; None where nothing.

    `gpus` are those of all ranks, each counted once.
    """
    if isinstance(case, CollectiveCase):
        reason = case.why_unsupported(gpus)
        return None if reason is None else Outcome("unsupported", reason)
    if not isinstance(case, LanguageModelCase) or case.sharing is None:
        return None
    reason = case.sharing.why_unsupported(case.batch_size, case.device, gpus)
    if reason is None and case.execution != "eager":
        reason = f"--execution {case.execution} is measured on one device; choose eager."
    if reason is None and case.own_optimizer is not None:
        reason = "an optimizer of your own is measured on one device; choose one of --optimizer's names."
    return None if reason is None else Outcome("unsupported", reason)


def why_too_large(case: Case, budget_bytes: int, earlier: Sequence[Json], of_what: str = "") -> Outcome | None:
    """None where the case may fit the budget and no smaller case of its family in `earlier` failed to.

    `of_what` says what limits the budget.
    """
    needed = needed_bytes(case)
    smaller = next((row for row in earlier if row["outcome"] in DOES_NOT_FIT and _is_smaller(row, case)), None)
    if needed > budget_bytes:
        reason = (
            f"needs at least {amount(needed)}, and {amount(budget_bytes)} may be used{of_what}; "
            "choose a smaller batch, context or size, or raise --memory-budget."
        )
    elif smaller is not None:
        reason = f"not tried: the smaller {smaller['id'].rpartition('::')[2]} is {OUTCOMES[smaller['outcome']]}."
    else:
        return None
    return Outcome("would_not_fit", reason, needed, budget_bytes)


def _is_smaller(row: Json, case: Case) -> bool:
    """Whether the row is of the case's family and none of its dimensions is larger."""
    there, here = identity_of(row), case.identity()
    if there.keys() != here.keys():
        return False
    return all(
        there[name] <= here[name]
        if name in DIMENSIONS and None not in (there[name], here[name])
        else there[name] == here[name]
        for name in here
        if name != "size"
    )


def outcome_of_error(error: BaseException, case: Case, device: Device, available_bytes: int) -> Outcome | None:
    """What the error says of the device; None where the case itself has failed."""
    words = words_of(error)
    if is_beyond_device(error):
        return Outcome("unsupported", words)
    if not is_out_of_memory(error):
        return None
    # PyTorch's own allocator tells what is free.
    memory = "" if "is free" in words else device.memory_in_words()
    return Outcome("out_of_memory", f"{words} ({memory})" if memory else words, needed_bytes(case), available_bytes)


def amount(count: float) -> str:
    """Bytes in words."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def outcome_of_report(report: pytest.TestReport) -> Outcome:
    """The outcome in pytest's report of a case that was skipped or failed."""
    if report.skipped:
        _, _, reason = report.longrepr if isinstance(report.longrepr, tuple) else ("", 0, str(report.longrepr))
        return Outcome("unsupported", reason.removeprefix("Skipped: "))
    crash = getattr(report.longrepr, "reprcrash", None)
    return Outcome("error", (crash.message if crash else report.longreprtext).splitlines()[0])

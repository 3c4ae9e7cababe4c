"""Every claim of this suite can fail: each planted fault is caught by the claim that names it.

`pytest numerics_tests -k kill_matrix -s` prints the table.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from numerics_tests.harness.claims import Claim, Fault, SourceFault, all_claims
from numerics_tests.harness.faults import FAULTS
from numerics_tests.harness.faults.source import HONEST, RANK_FAULTS, SOURCE_FAULTS
from numerics_tests.machine.environment import device

CLAIMS = all_claims()
IN_SOURCE = (*SOURCE_FAULTS, *RANK_FAULTS)
JUDGED_BY_A_COPY = {f"test_{fault.caught_by}": fault for fault in IN_SOURCE}
ENOUGH = 50
"""Fewer would mean that a module of faults is no longer imported."""
ENOUGH_OF_RANKS = 20
ONLY_ON_A_CPU = ("torch's 16-bit kernel on a CPU",)


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    """A row per caught fault, printed after the last."""
    rows: list[str] = []
    yield rows
    print("\n" + "\n".join(rows))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_kill_matrix_fault_is_caught(fault: Fault, table: list[str]) -> None:
    """The claim fails on the fault, by an assertion and not by an accident such as a wrong argument."""
    if fault.name in ONLY_ON_A_CPU and device().type != "cpu":
        pytest.skip(f"{fault.name} is none on {device().type}.")
    try:
        fault.claim.judge(fault.implementation)
    except AssertionError as error:
        table.append(f"{fault.claim.area:22} {fault.name:42} {str(error).splitlines()[0][:110]}")
        return
    pytest.fail(f"{fault.name!r} survives {fault.claim.name}: the claim no longer sees it.")


@pytest.mark.parametrize("fault", IN_SOURCE, ids=lambda fault: fault.name.replace(" ", "-"))
def test_kill_matrix_source_fault_is_caught(fault: SourceFault, table: list[str]) -> None:
    """The same for a fault in the source of `model/`."""
    try:
        fault.judge()
    except AssertionError as error:
        table.append(f"{'model/' + fault.path:22} {fault.name:42} {str(error).splitlines()[0][:110]}")
        return
    pytest.fail(f"{fault.name!r} survives {fault.caught_by}: the claim no longer sees it.")


def test_kill_matrix_second_import_passes() -> None:
    """A copy of `model/` without a fault is judged as the model is: what the faults fail on is the fault."""
    for fault in JUDGED_BY_A_COPY.values():
        replace(fault, new=fault.old).judge()


@pytest.mark.parametrize("rewrite", HONEST, ids=lambda rewrite: rewrite.name.replace(" ", "-"))
def test_kill_matrix_honest_rewrite_passes(rewrite: SourceFault) -> None:
    """No claim asks for the very operations that the model is written in."""
    rewrite.judge()


@pytest.mark.parametrize(
    "claim", [claim for name, claim in CLAIMS.items() if name not in JUDGED_BY_A_COPY], ids=lambda claim: claim.name
)
def test_kill_matrix_claim_holds_for_its_reference(claim: Claim) -> None:
    """Judged in the same way as the faults, the reference passes: a claim that fails on everything proves nothing.

    Those that faults in the source fail on have just judged a copy without a fault.
    """
    if not claim.references:
        pytest.skip("its references are a fixture; the claim itself runs on them.")
    claim.judge(next(iter(claim.references.values())))


def test_kill_matrix_covers_every_claim() -> None:
    """A claim without a planted fault might never fail."""
    unguarded = set(CLAIMS) - {f"test_{fault.caught_by}" for fault in (*FAULTS, *IN_SOURCE)}
    assert not unguarded, f"no fault is planted for {', '.join(sorted(unguarded))}"


def test_kill_matrix_is_large_enough() -> None:
    """Names are unique, and there are faults of every area."""
    assert len(FAULTS) >= ENOUGH
    assert len(RANK_FAULTS) >= ENOUGH_OF_RANKS
    twice = [name for name, count in Counter(fault.name for fault in (*FAULTS, *IN_SOURCE)).items() if count > 1]
    assert not twice, f"two faults are called {twice}"


def test_kill_matrix_notices_a_survivor() -> None:
    """The check itself can fail: a reference planted as a fault survives."""
    claim = CLAIMS["test_softmax_is_within_its_bound"]
    harmless = Fault("no fault at all", "softmax_is_within_its_bound", next(iter(claim.references.values())))
    with pytest.raises(pytest.fail.Exception, match="survives"):
        test_kill_matrix_fault_is_caught(harmless, [])

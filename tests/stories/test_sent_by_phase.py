"""What ranks send in each phase alone is what the closed form of a step says of its parts."""

import pytest

from tests.support.launch import Launch
from tests.support.ranks import ranks_launched_once

WAYS = ("zero1-world2", "fsdp2-world2", "fsdp2-world2-no-reshard")
PHASES = ("inference", "forward", "backward", "forward_backward", "optimizer")

both = ranks_launched_once("--parallel=zero1,fsdp2", "--reshard=yes,no", f"--phase={','.join(PHASES)}")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("phase", PHASES)
def test_each_phase_sends_what_the_closed_form_says_of_its_parts(phase: str, way: str, both: list[Launch]) -> None:
    info = both[0].measured[f"test_{phase}[tiny-ctx8-fp32-naive-{way}]"]["extra_info"]
    counted = {part: sent for part, sent in info["sent_by_part"].items() if sent["sent_bytes"]}
    assert counted == {part: sent for part, sent in info["predicted_sent_by_part"].items() if sent["sent_bytes"]}
    assert info["sent_bytes"] == info["predicted_sent_bytes"]
    # A pass with gathers or reductions of its own sends something.
    sends = phase in {"zero1-world2": ("backward", "forward_backward", "optimizer")}.get(way, PHASES)
    assert (info["sent_bytes"] > 0) is sends

"""The suite on two ranks that exchange bytes by gloo: one record, the same samples, and a row for what cannot run.

Two launches of two ranks.
"""

import re
from pathlib import Path
from statistics import median

import pytest

from perf_tests_suite.perf_tests.hardware.limits import COLLECTIVES, fit_link
from perf_tests_suite.perf_tests.records.record import Json
from tests.support.launch import Launch, launch_ranks

PLAIN = "test_full_step[tiny-ctx8-fp32-naive]"
ALONE, DDP, DDP_OF_THREE = (f"test_full_step[tiny-ctx8-fp32-naive-ddp-world{world}]" for world in (1, 2, 3))
FSDP2, FSDP2_BF16 = (f"test_full_step[tiny-ctx8-fp32-naive-{way}-world2]" for way in ("fsdp2", "fsdp2-bf16"))
SIZES = ("10B", "4KB", "40KB", "4MB")
PHASES = ("inference", "forward", "backward", "forward_backward", "optimizer")
SENDING = {
    "zero1-world2": ("backward", "forward_backward", "optimizer"), "fsdp2-world2": PHASES,
    "fsdp2-world2-no-reshard": PHASES,
}  # fmt: skip
"""Phases with gathers or reductions of their own, by way."""


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[Launch]:
    shares = ("--parallel=none,ddp,fsdp2,fsdp2-bf16", "--world=1,2,3", "--phase=full_step", "--rounds=3")
    alone = ("--collective=all", f"--message-size={','.join(SIZES)}")
    return launch_ranks(tmp_path_factory.mktemp("both"), *shares, *alone)


@pytest.fixture(scope="module")
def lead(both: list[Launch]) -> Launch:
    return both[0]


def info_of(lead: Launch, name: str) -> Json:
    info: Json = lead.measured[name]["extra_info"]
    return info


def test_rank_0_prints_and_saves_and_the_other_is_silent(both: list[Launch]) -> None:
    lead, other = both
    assert (lead.exit_code, other.exit_code) == (0, 0), lead.output + other.errors
    assert [words for words in ("Saved", "- ranks -", "- collectives -") if words not in lead.output] == []
    assert ("warnings" in lead.output, other.output, other.errors) == (False, "", "")
    assert (len(lead.records), lead.journals) == (1, [])
    assert lead.record["machine_info"]["torch"]["ranks"] == {"ranks_per_node": 2, "nccl": None, "peer_access": None}
    assert int(re.findall(r"(\d+)% in rounds that show what communication costs", lead.output)[0]) > 0


def test_one_record_holds_one_device_and_every_number_of_ranks(lead: Launch) -> None:
    assert {PLAIN, ALONE, DDP, FSDP2} <= lead.measured.keys()
    for name in (DDP_OF_THREE, "test_collective[all_reduce-4KB-world3]"):
        assert lead.outcomes[name]["outcome"] == "unsupported"
        assert "--world 3 needs 3 ranks, and 2 were started" in lead.outcomes[name]["reason"]


def test_a_row_says_how_ranks_share_it_and_one_on_a_device_says_nothing(lead: Launch) -> None:
    of_ranks = {
        "parallel": "ddp", "world": 2, "nodes": 1, "mesh": "data=2", "backend": "gloo", "scaling": "strong",
        "global_batch_size": 4, "per_rank_batch_size": 2, "bucket_bytes": None, "reshard": None,
        "reduce_dtype": "float32",
    }  # fmt: skip
    plain, ddp = info_of(lead, PLAIN), info_of(lead, DDP)
    assert {name: ddp[name] for name in of_ranks} == of_ranks
    assert {plain[name] for name in of_ranks} == {None}
    assert info_of(lead, FSDP2)["reshard"] is True


def test_a_round_takes_as_long_as_on_its_slowest_rank(lead: Launch) -> None:
    row, info = lead.measured[DDP], info_of(lead, DDP)
    rounds = list(zip(*info["rank_seconds"], strict=True))
    assert (len(rounds), row["stats"]["data"]) == (3, [max(pair) for pair in rounds])
    assert info["slowest_ranks"] == [pair.index(max(pair)) for pair in rounds]
    assert info["tokens_per_second"] == pytest.approx(4 * 8 / row["stats"]["median"]), "of all ranks"


def test_the_ceiling_and_the_efficiency_are_held_against_one_rank(lead: Launch) -> None:
    one, two = info_of(lead, ALONE), info_of(lead, DDP)
    ceiling, rate = "matmul_ceiling_tflops_per_second", "tokens_per_second"
    assert two[ceiling] == 2 * one[ceiling] > 0
    assert (two["relative_to"], one["sent_bytes"]) == (lead.measured[ALONE]["fullname"], 0)
    assert two["scaling_efficiency"] == pytest.approx(two[rate] / 2 / one[rate])


def test_exposed_communication_is_the_median_difference_to_the_step_without_it(lead: Launch) -> None:
    for info in (info_of(lead, name) for name in (DDP, FSDP2, FSDP2_BF16)):
        pairs = list(zip(info["seconds_with_communication"], info["seconds_without_communication"], strict=True))
        assert len(pairs) == 3
        assert info["exposed_communication_seconds"] == median(with_it - without for with_it, without in pairs)


def test_each_part_of_each_phase_sends_what_the_closed_form_says(lead: Launch, tmp_path: Path) -> None:
    of_phases, _ = launch_ranks(tmp_path, "--parallel=zero1,fsdp2", "--reshard=yes,no", f"--phase={','.join(PHASES)}")
    cases = [(info_of(lead, name), True) for name in (DDP, FSDP2)]
    cases += [
        (info_of(of_phases, f"test_{phase}[tiny-ctx8-fp32-naive-{way}]"), phase in sending)
        for way, sending in SENDING.items()
        for phase in PHASES
    ]
    for info, sends in cases:
        sent, predicted = (
            {part: of_part for part, of_part in info[of].items() if of_part["sent_bytes"]}
            for of in ("sent_by_part", "predicted_sent_by_part")
        )
        assert (sent, info["sent_bytes"]) == (predicted, info["predicted_sent_bytes"])
        assert (info["sent_bytes"] > 0) is sends
    for info, _ in cases[:2]:
        assert sum(of_part["sent_bytes"] for of_part in info["sent_by_part"].values()) == info["sent_bytes"]


def test_a_collective_has_the_bandwidths_of_nccl_tests(lead: Launch) -> None:
    names = {f"test_collective[{each}-{size}-world{world}]" for each in COLLECTIVES for size in SIZES for world in "12"}
    assert names <= lead.measured.keys()
    for collective, times_bus in (("all_reduce", 1.0), ("all_gather", 0.5), ("reduce_scatter", 0.5)):
        row = lead.measured[f"test_collective[{collective}-40KB-world2]"]
        info = row["extra_info"]
        assert info["algorithm_bytes_per_second"] == pytest.approx(40_000 / row["stats"]["median"])
        assert info["bus_bytes_per_second"] == pytest.approx(times_bus * info["algorithm_bytes_per_second"])
        assert len(info["rank_seconds"]) == 2
        assert (info["collective"], info["message_bytes"], info["backend"]) == (collective, 40_000, "gloo")
    cut = "test_collective[all_gather-10B-world2]"
    assert info_of(lead, cut)["exchanged_bytes"] == 8, "what ranks cannot divide is cut"


def test_a_record_holds_a_link_for_each_collective_whose_times_grow_with_the_size(lead: Launch) -> None:
    links = {link["collective"]: link for link in lead.record.get("links", [])}
    for collective in COLLECTIVES:
        rows = [lead.measured[f"test_collective[{collective}-{size}-world2]"] for size in SIZES]
        link = fit_link([(row["extra_info"]["exchanged_bytes"], row["stats"]["median"]) for row in rows])
        # One message that was held up on a busy machine leaves no rate to fit.
        assert (collective in links) is (link is not None)
        if link is not None:
            own = {"collective": collective, "world": 2, "backend": "gloo", "sizes": len(SIZES)}
            fitted = {"latency_seconds": link.latency_seconds, "bytes_per_second": link.bytes_per_second}
            assert links[collective] | own | fitted == links[collective]

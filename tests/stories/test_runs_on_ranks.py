"""The suite on two ranks that exchange bytes by gloo: one record, the same samples, and a row for what cannot run."""

import re
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from tests.support.launch import ROOT, Launch
from tests.support.ranks import launch_ranks, ranks_launched_once

PLAIN = "test_full_step[tiny-ctx8-fp32-naive]"
ALONE, DDP, DDP_OF_THREE = (f"test_full_step[tiny-ctx8-fp32-naive-ddp-world{world}]" for world in (1, 2, 3))
FSDP2, FSDP2_BF16 = (f"test_full_step[tiny-ctx8-fp32-naive-{way}-world2]" for way in ("fsdp2", "fsdp2-bf16"))

both = ranks_launched_once("--parallel=none,ddp,fsdp2,fsdp2-bf16", "--world=1,2,3", "--phase=full_step", "--rounds=3")


@pytest.fixture(scope="module")
def lead(both: list[Launch]) -> Launch:
    return both[0]


def test_rank_0_prints_and_saves_and_the_other_is_silent(both: list[Launch]) -> None:
    assert [launched.exit_code for launched in both] == [0, 0], both[0].output + both[1].errors
    assert "Saved" in both[0].output
    assert "warnings" not in both[0].output
    assert both[1].output == both[1].errors == ""
    assert len(both[0].records) == 1
    assert both[0].journals == []


def test_the_time_of_the_run_names_the_rounds_that_show_the_cost_of_communication(lead: Launch) -> None:
    share = re.search(r"(\d+)% in rounds that show what communication costs", lead.output)
    assert share is not None
    assert int(share[1]) > 0


def test_one_record_holds_one_device_and_every_number_of_ranks(lead: Launch) -> None:
    assert {PLAIN, ALONE, DDP, FSDP2} <= lead.measured.keys()
    assert "--world 3 needs 3 ranks, and 2 were started" in lead.outcomes[DDP_OF_THREE]["reason"]
    assert lead.outcomes[DDP_OF_THREE]["outcome"] == "unsupported"


def test_a_row_says_how_ranks_share_it_and_one_on_a_device_says_nothing(lead: Launch) -> None:
    of_ranks = {
        "parallel": "ddp", "world": 2, "nodes": 1, "mesh": "data=2", "backend": "gloo", "scaling": "strong",
        "global_batch_size": 4, "per_rank_batch_size": 2, "bucket_bytes": None, "reshard": None,
        "reduce_dtype": "float32",
    }  # fmt: skip
    plain, ddp = lead.measured[PLAIN]["extra_info"], lead.measured[DDP]["extra_info"]
    assert {name: ddp[name] for name in of_ranks} == of_ranks
    assert {plain[name] for name in of_ranks} == {None}
    assert lead.measured[FSDP2]["extra_info"]["reshard"] is True


def test_a_round_takes_as_long_as_on_its_slowest_rank(lead: Launch) -> None:
    row = lead.measured[DDP]
    own = row["extra_info"]["rank_seconds"]
    assert [len(seconds) for seconds in own] == [3, 3]
    assert row["stats"]["data"] == [max(pair) for pair in zip(*own, strict=True)]
    assert row["extra_info"]["slowest_ranks"] == [pair.index(max(pair)) for pair in zip(*own, strict=True)]


def test_exposed_communication_is_the_median_difference_to_the_step_without_it(lead: Launch) -> None:
    for name in (DDP, FSDP2, FSDP2_BF16):
        info = lead.measured[name]["extra_info"]
        pairs = list(zip(info["seconds_with_communication"], info["seconds_without_communication"], strict=True))
        assert len(pairs) == 3
        assert info["exposed_communication_seconds"] == median(with_it - without for with_it, without in pairs)


def test_tokens_per_second_are_those_of_all_ranks(lead: Launch) -> None:
    row = lead.measured[DDP]
    assert row["extra_info"]["tokens_per_second"] == pytest.approx(4 * 8 / row["stats"]["median"])


def test_the_ceiling_of_a_row_is_that_of_all_its_ranks(lead: Launch) -> None:
    alone, both = (lead.measured[name]["extra_info"]["matmul_ceiling_tflops_per_second"] for name in (ALONE, DDP))
    assert both == 2 * alone > 0


@pytest.mark.parametrize("name", [DDP, FSDP2])
def test_the_bytes_that_a_step_sends_are_those_of_the_closed_form(name: str, lead: Launch) -> None:
    info = lead.measured[name]["extra_info"]
    assert info["sent_bytes"] == info["predicted_sent_bytes"] > 0
    assert sum(part["sent_bytes"] for part in info["sent_by_part"].values()) == info["sent_bytes"]


@pytest.mark.parametrize("name", [DDP, FSDP2])
def test_each_part_of_a_step_sends_the_predicted_messages(name: str, lead: Launch) -> None:
    info = lead.measured[name]["extra_info"]
    counted = {part: sent for part, sent in info["sent_by_part"].items() if sent["sent_bytes"]}
    assert counted == {part: sent for part, sent in info["predicted_sent_by_part"].items() if sent["sent_bytes"]}
    assert counted["backward"]["collectives"].keys() <= {"all_reduce", "all_gather", "reduce_scatter"}


def test_one_rank_sends_nothing(lead: Launch) -> None:
    assert lead.measured[ALONE]["extra_info"]["sent_bytes"] == 0


def test_the_screen_and_the_row_say_to_which_row_the_efficiency_is_relative(lead: Launch) -> None:
    info, base = lead.measured[DDP]["extra_info"], lead.measured[ALONE]
    rate = base["extra_info"]["tokens_per_second"]
    assert info["relative_to"] == base["fullname"]
    assert info["scaling_efficiency"] == pytest.approx(info["tokens_per_second"] / 2 / rate)
    assert "- ranks -" in lead.output


def test_the_machine_says_how_its_ranks_are_joined(lead: Launch) -> None:
    assert lead.record["machine_info"]["torch"]["ranks"] == {"ranks_per_node": 2, "nccl": None, "peer_access": None}


ONE_DEVICE = """
import sys
import perf_tests.plugin, perf_tests.conftest
of_ranks = ("perf_tests.bench.ranks", "perf_tests.run.ranks", "torch.distributed.tensor")
print(*sorted(name for name in sys.modules if name.startswith(of_ranks)))
"""


def test_a_run_on_one_device_loads_nothing_of_ranks() -> None:
    loaded = subprocess.run([sys.executable, "-c", ONE_DEVICE], capture_output=True, text=True, cwd=ROOT, check=True)
    assert loaded.stdout.split() == []


def test_the_kernels_of_a_shared_case_are_those_of_rank_0(tmp_path: Path) -> None:
    lead, other = launch_ranks(tmp_path, "--parallel=ddp", "--phase=forward_backward", "--kernels")
    assert (lead.exit_code, other.exit_code) == (0, 0), lead.output
    (traced,) = lead.passes.values()
    assert traced["values"]["trace"] is not None
    assert other.output == ""

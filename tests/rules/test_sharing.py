"""How ranks share a case: labels that stay, cases that cannot run, and what each rank keeps."""

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, made in C++

from model.parallel import PARALLEL, reduce_dtype
from perf_tests.bench import workbench as workbench_module
from perf_tests.bench.ranks import Peers
from perf_tests.cases import settings
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.cases.sharing import (
    Launched,
    Sharing,
    device_in_words,
    facts_of_ranks,
    gpu_of_this_rank,
    labels,
    own_gpu,
)
from perf_tests.hardware.device import CpuDevice
from perf_tests.hardware.limits import VARIANTS
from perf_tests.predict.counters import needed_bytes
from perf_tests.records.columns import Cell
from tests.support.example_cases import CPU, SETTINGS, language_model_case
from tests.support.fake_cuda import FakeCuda

WAYS = labels(("none", "ddp", "fsdp2"), (1, 2), ("strong", "weak"), (1, 25), ("yes", "no"))


def test_every_way_of_the_model_has_its_name_and_the_dtype_of_its_sums_here() -> None:
    assert tuple(PARALLEL) == VARIANTS
    for name in VARIANTS:
        assert f"torch.{Sharing(name, 2).reduce_dtype}" == str(reduce_dtype(name))


def test_the_axis_has_each_way_once_that_makes_a_difference() -> None:
    assert len(WAYS) == len(set(WAYS)) == 1 + 6 + 6
    assert labels(("ddp",), (2,), ("strong",), (), ("yes",)) == ("ddp-world2",)
    assert labels(("fsdp2",), (1,), ("weak",), (25,), ("yes",)) == ("fsdp2-world1",)


@pytest.mark.parametrize(
    "typed, words",
    [
        ({"--parallel": "fsdp2", "--bucket-mb": "1"}, "--bucket-mb changes ddp and zero1 alone; choose one of them"),
        ({"--parallel": "none,ddp", "--reshard": "no"}, "--reshard changes fsdp2 and fsdp2-bf16 alone; choose one of"),
        ({"--collective": "all", "--reshard": "no"}, "with --parallel, or drop the option"),
    ],
)
def test_an_option_that_changes_nothing_of_the_chosen_ways_is_refused(typed: dict[str, str], words: str) -> None:
    options = {"--device": "cpu", **typed}
    with pytest.raises(pytest.UsageError, match=words):
        settings.read_settings(cast(pytest.Config, SimpleNamespace(getoption=options.get)))


@pytest.mark.parametrize("label", [label for label in WAYS if label is not None])
def test_a_label_is_read_back_from_itself_and_from_the_identity_of_its_case(label: str) -> None:
    assert Sharing.of(label).label == label
    assert Sharing.label_in(language_model_case(batch_size=4, sharing=Sharing.of(label)).identity()) == label


def test_a_case_on_one_device_has_no_label_and_the_id_it_always_had() -> None:
    assert Sharing.label_in(language_model_case().identity()) is None


@pytest.mark.parametrize("odd", ["x", [1], 2.5])
def test_a_bucket_that_is_no_count_of_bytes_is_none(odd: object) -> None:
    """As a damaged record may have it."""
    identity = language_model_case(batch_size=4, sharing=Sharing.of("ddp-world2")).identity()
    assert Sharing.label_in({**identity, "bucket_bytes": odd}) == Sharing.label_in(identity)
    assert LanguageModelCase.id_of("tiny", 8, "fp32", "naive") == "tiny-ctx8-fp32-naive"
    assert LanguageModelCase.id_of("tiny", 8, "fp32", "naive", parallel="ddp-world2").endswith("naive-ddp-world2")


@pytest.mark.parametrize("scaling, of_all, of_each", [("strong", 4, 2), ("weak", 8, 4)])
def test_strong_scaling_divides_the_batch_and_weak_scaling_repeats_it(scaling: str, of_all: int, of_each: int) -> None:
    case = language_model_case(batch_size=4, sharing=Sharing("ddp", 2, scaling))
    assert (case.global_batch_size, case.per_rank_batch_size) == (of_all, of_each)
    assert case.tokens == of_all * case.context_length


def started(monkeypatch: pytest.MonkeyPatch, world: int, rank: int = 0) -> None:
    address = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "MASTER_ADDR": "here", "MASTER_PORT": 1}
    for name, value in address.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    "sharing, device, words",
    [
        pytest.param(Sharing("ddp", 8), "cpu", "--world 8 needs 8 ranks, and 4 were started", id="ranks"),
        pytest.param(Sharing("ddp", 3), "cpu", "3 ranks cannot divide a batch of 4 evenly", id="batch"),
        pytest.param(Sharing("ddp", 4), "cuda", "4 ranks need a GPU each, and they have 2", id="GPUs"),
    ],
)
def test_what_ranks_cannot_run_is_said_in_one_sentence(
    sharing: Sharing, device: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(monkeypatch, 4)
    reason = sharing.why_unsupported(4, device, gpus=2)
    assert reason is not None
    assert reason.startswith(words)
    assert Sharing("ddp", 3, "weak").why_unsupported(4, "cpu", gpus=0) is None


def test_ranks_fill_a_machine_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert [Sharing("ddp", world).nodes for world in (1, 4, 5, 8)] == [1, 1, 2, 2]


class FourThousandBytes(CpuDevice):
    def available_bytes(self) -> int:
        return 4000

    def limit_memory(self, budget_bytes: int) -> None:
        """Of this process, which runs other tests too."""


def test_the_ranks_of_a_machine_divide_its_cores_and_its_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setattr(settings, "physical_cores", lambda: 10)
    assert [settings.cores_of_a_rank(is_shared) for is_shared in (True, False)] == [2, 10]
    monkeypatch.setattr(settings, "physical_cores", lambda: 2)
    assert settings.cores_of_a_rank(is_shared=True) == 1
    monkeypatch.setattr(workbench_module, "open_device", lambda device: FourThousandBytes(CPU))
    peers = Peers(Launched(0, 8, local_world=4), HashStore(), HashStore())
    assert workbench_module.set_up(SETTINGS, peers).budget_bytes == 1000
    assert workbench_module.set_up(SETTINGS).budget_bytes == 4000


def test_gpus_have_peer_access_where_each_reads_every_other_ones_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    for closed, is_open in ((None, True), ((0, 1), False), ((1, 0), False)):
        monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *pair, closed=closed: pair != closed)
        facts = facts_of_ranks(Launched(0, 4, local_world=2), torch.device("cuda", 0))
        assert facts == {"ranks_per_node": 2, "nccl": "2.27.5", "peer_access": is_open}


def test_each_rank_takes_the_gpu_of_its_number_or_the_only_one_that_it_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    started(monkeypatch, 4, rank=3)
    for count, index in ((4, 3), (1, 0)):
        cuda.sees(count=count)
        assert own_gpu() == torch.device("cuda", index)


def test_two_ranks_on_one_gpu_are_found_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"id{device.index}"))
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    assert device_in_words(first) == device_in_words(second) == "NVIDIA H100"
    assert len({gpu_of_this_rank(device) for device in (first, second, second)}) == 2
    assert gpu_of_this_rank(torch.device("cpu")) is None


def test_what_a_rank_certainly_holds_falls_with_what_is_sharded() -> None:
    def of(parallel: str) -> int:
        return needed_bytes(language_model_case(phase="full_step", batch_size=4, sharing=Sharing(parallel, 2)))

    assert of("fsdp2") < of("zero1") < of("ddp")


@pytest.mark.parametrize(
    "sharing, words",
    [
        (None, "naive"),
        (Sharing("ddp", 2), "naive, ddp on 2 ranks"),
        (Sharing("ddp", 4, "weak", 25), "naive, ddp on 4 ranks, a batch each, buckets of 25 MiB"),
        (Sharing("fsdp2", 2, keeps_gathered=True), "naive, fsdp2 on 2 ranks, not resharded"),
    ],
)
def test_tables_have_a_row_for_each_way(sharing: Sharing | None, words: str) -> None:
    assert Cell("id", language_model_case(sharing=sharing).identity(), {}).implementation == words

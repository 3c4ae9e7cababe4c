"""How ranks share a case: labels that stay, cases that cannot run, and what each rank keeps."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]  # public, made in C++

from perf_tests_suite.model.parallel import PARALLEL, reduce_dtype
from perf_tests_suite.perf_tests.bench import workbench as workbench_module
from perf_tests_suite.perf_tests.bench.ranks import Peers
from perf_tests_suite.perf_tests.cases import devices, settings
from perf_tests_suite.perf_tests.cases import sharing as ways
from perf_tests_suite.perf_tests.hardware.device import CpuDevice
from perf_tests_suite.perf_tests.hardware.limits import VARIANTS
from perf_tests_suite.perf_tests.predict.counters import needed_bytes
from perf_tests_suite.perf_tests.records.record import Json
from tests.support.example_cases import CPU, SETTINGS, language_model_case
from tests.support.fake_cuda import FakeCuda

WAYS = ways.labels(("none", "ddp", "fsdp2"), (1, 2), ("strong", "weak"), (1, 25), ("yes", "no"))


def test_every_way_of_the_model_has_its_name_and_the_dtype_of_its_sums_here() -> None:
    assert tuple(PARALLEL) == VARIANTS
    for name in VARIANTS:
        assert f"torch.{ways.Sharing(name, 2).reduce_dtype}" == str(reduce_dtype(name))


def test_the_axis_has_each_way_once_that_makes_a_difference_and_is_read_back_from_its_case() -> None:
    assert len(WAYS) == len(set(WAYS)) == 1 + 6 + 6
    assert ways.labels(("ddp",), (2,), ("strong",), (), ("yes",)) == ("ddp-world2",)
    assert ways.labels(("fsdp2",), (1,), ("weak",), (25,), ("yes",)) == ("fsdp2-world1",)
    for label in WAYS:
        sharing = None if label is None else ways.Sharing.of(label)
        identity = language_model_case(batch_size=4, sharing=sharing).identity()
        assert ways.Sharing.label_in(identity) == label == (sharing and sharing.label)
        for odd in ("x", [1], 2.5):  # as a damaged record may have it
            assert "bucket" not in str(ways.Sharing.label_in({**identity, "bucket_bytes": odd}))


def test_strong_scaling_divides_the_batch_and_weak_scaling_repeats_it() -> None:
    alone = language_model_case(batch_size=4)
    assert (alone.global_batch_size, alone.per_rank_batch_size, alone.tokens) == (None, None, 4 * alone.context_length)
    for scaling, of_all, of_each in (("strong", 4, 2), ("weak", 8, 4)):
        case = replace(alone, sharing=ways.Sharing("ddp", 2, scaling))
        assert (case.global_batch_size, case.per_rank_batch_size) == (of_all, of_each)
        assert (case.tokens, case.backend) == (of_all * case.context_length, "gloo")


def started(monkeypatch: pytest.MonkeyPatch, world: int, rank: int = 0, local_world: int | None = None) -> None:
    address = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "MASTER_ADDR": "here", "MASTER_PORT": 1}
    for name, value in {**address, "LOCAL_WORLD_SIZE": local_world or world}.items():
        monkeypatch.setenv(name, str(value))


def test_what_ranks_cannot_run_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, 4)
    refused: list[tuple[ways.Sharing, Json, str]] = [
        (ways.Sharing("ddp", 8), {}, "--world 8 needs 8 ranks, and 4 were started; give torchrun --nproc-per-node 8"),
        (ways.Sharing("ddp", 3), {}, "3 ranks cannot divide a batch of 4 evenly; choose a --batch-size that 3 divides"),
        (ways.Sharing("ddp", 4), {"device": "cuda"}, "4 ranks need a GPU each, and they have 2; give torchrun "),
        (ways.Sharing("ddp", 3, "weak"), {}, "None"), (ways.Sharing("ddp", 4), {}, "None"),
        (ways.Sharing("ddp", 2), {"execution": "compiled"}, ".*choose eager"),
        (ways.Sharing("ddp", 2), {"optimizer": "m:f"}, ".*--optimizer's"),
    ]  # fmt: skip
    for sharing, changes, words in refused:
        case = language_model_case(batch_size=4, sharing=sharing, **changes)
        assert re.match(words, str(case.why_unsupported_on_ranks(gpus=2)))


def test_ranks_fill_a_machine_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ways.launched() is None
    started(monkeypatch, 8, local_world=4)
    assert [ways.Sharing("ddp", world).nodes for world in (1, 4, 5, 8)] == [1, 1, 2, 2]
    commands = [" ".join(ways.Launched(0, world, local_world=4).command) for world in (4, 8)]
    assert commands == [
        "torchrun --nproc-per-node 4 --no-python", "torchrun --nnodes 2 --nproc-per-node 4 --no-python"
    ]  # fmt: skip


class FourThousandBytes(CpuDevice):
    def available_bytes(self) -> int:
        return 4000

    def limit_memory(self, budget_bytes: int) -> None:
        """Limit the memory of this process, which runs other tests too."""


def test_the_ranks_of_a_machine_divide_its_cores_and_its_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, 8, local_world=4)
    for cores, of_a_rank in ((10, 2), (2, 1)):
        monkeypatch.setattr(settings, "physical_cores", lambda cores=cores: cores)
        assert [settings.cores_of_a_rank(is_shared) for is_shared in (True, False)] == [of_a_rank, cores]
    monkeypatch.setattr(workbench_module, "open_device", lambda device: FourThousandBytes(CPU))
    peers = Peers(ways.Launched(0, 8, local_world=4), HashStore(), HashStore())
    assert workbench_module.set_up(SETTINGS, peers).budget_bytes == 1000
    assert workbench_module.set_up(SETTINGS).budget_bytes == 4000


def test_gpus_of_ranks_are_known_by_number_uuid_and_peer_access(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    started(monkeypatch, 4, rank=3)
    for count, index in ((4, 3), (1, 0), (2, 1)):
        cuda.sees(count=count)
        assert devices.rank_gpu() == torch.device("cuda", index)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    for closed, is_open in ((None, True), ((0, 1), False), ((1, 0), False)):
        monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *pair, closed=closed: pair != closed)
        facts = devices.facts_of_ranks(ways.Launched(0, 4, local_world=2), torch.device("cuda", 0))
        assert facts == {"ranks_per_node": 2, "nccl": "2.27.5", "peer_access": is_open}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"id{device.index}"))
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    assert devices.device_label(first) == devices.device_label(second) == "NVIDIA H100"
    assert len({devices.gpu_of_this_rank(device) for device in (first, second, second)}) == 2
    assert devices.gpu_of_this_rank(CPU) is None


def test_what_a_rank_certainly_holds_falls_with_what_is_sharded() -> None:
    def of(parallel: str) -> int:
        return needed_bytes(language_model_case(phase="full_step", batch_size=4, sharing=ways.Sharing(parallel, 2)))

    assert of("fsdp2") < of("zero1") < of("ddp")

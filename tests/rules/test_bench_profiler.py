"""Real rounds on the CPU under the profiler: launches that the counters know beforehand, imports, page faults."""

import mmap
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from model.precision import PRECISIONS
from model.sizes import SIZES
from model.training import Training
from perf_tests.audit.rounds import inconsistencies
from perf_tests.bench.loop import Rounds
from perf_tests.hardware.device import CpuDevice, page_faults, seconds_per_page_fault
from perf_tests.passes.kernels import ProfilerBusyError, trace_rounds
from perf_tests.passes.warmup import imports_as_ranges, traced_call
from perf_tests.predict.counters import counters_of
from perf_tests.records.record import Json, without_nan
from perf_tests.traces.kernels import TracedRound, first_round_parts
from tests.support.example_cases import CPU, TOY, build, language_model_case, random_tokens
from tests.support.synthetic_trace import row
from tests.support.traced_rounds import rounds, trace_bytes, traced_values


def test_a_launch_more_than_counted_is_seen() -> None:
    training = Training(build(), PRECISIONS["fp32"], CPU)
    forward, setup = rounds(training, random_tokens())["forward"]
    case = language_model_case()
    assert traced_values(case, lambda: forward() + 1, setup)["launches"] == counters_of(case).kernel_launches + 1


@pytest.fixture(scope="module")
def traced() -> Json:
    """A real full step of two layers on the CPU."""
    training = Training(build(), PRECISIONS["fp32"], CPU)
    training.create_optimizer_state()
    return traced_values(language_model_case(phase="full_step"), *rounds(training, random_tokens())["full_step"])


def test_a_real_step_contradicts_nothing_and_is_json(traced: Json) -> None:
    assert inconsistencies(traced) == []
    assert without_nan(traced) == traced


def test_every_kernel_of_a_real_backward_pass_is_given_back_to_a_region(traced: Json) -> None:
    back = [row for row in traced["regions"] if row["is_backward"]]
    assert {"attention", "attention / softmax", "feed_forward", "norm", "head", "loss", "embedding"} <= {
        row["region"] for row in back
    }
    top = [row for row in back if " / " not in row["region"]]
    assert sum(row["share_of_direction"] for row in top) == pytest.approx(1)
    assert sum(row["launches"] for row in top if row["region"] in ("elsewhere", "residual")) <= 2


def test_the_softmax_of_a_real_layer_is_five_kernels_of_one_flop_an_element(traced: Json) -> None:
    forward = traced["attention"]["forward"]
    softmax = row(forward["parts"], part="softmax")
    assert (forward["layers"], softmax["launches"]) == (TOY.num_layers, 5)
    assert forward["softmax_over_products_flops"] == pytest.approx(5 / (4 * TOY.head_dim))


def test_the_trace_of_a_full_step_of_the_large_size_takes_less_than_20_megabytes() -> None:
    """A trace grows by the same with each layer, whatever its width, so two small models say what 36 layers take."""
    one, three = (trace_bytes(replace(TOY, num_layers=layers)) for layers in (1, 3))
    of_large = one + (SIZES["large"].num_layers - 1) * (three - one) / 2
    # On a GPU each operation has its call, its kernel and two arrows between them beside.
    assert 4 * of_large < 20e6, f"{of_large / 1e6:.1f} MB on a CPU"


def test_a_profiler_that_is_already_active_is_told() -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]), pytest.raises(ProfilerBusyError, match="already active"):
        trace_rounds(Rounds(lambda: None).play, CpuDevice(CPU))


def test_an_import_inside_a_traced_call_is_its_module_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted_inner.py").write_text("import time\ntime.sleep(0.02)\ntouched = b'1' * (8 << 20)\n")
    (tmp_path / "planted_outer.py").write_text("import planted_inner\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def function() -> torch.Tensor:
        __import__("planted_outer")
        return torch.ones(8) + 1

    device = CpuDevice(CPU)
    first, later = traced_call(function, device), traced_call(function, device)
    for name in ("planted_outer", "planted_inner"):
        del sys.modules[name]
    assert (first.modules_loaded, later.modules_loaded) == (2, 0)
    parts = first_round_parts(TracedRound(first.events, 0, 0.0), TracedRound(later.events, 0, 0.0), None)
    assert parts["module_loading_seconds"] >= 0.02
    assert first.page_faults < (8 << 20) // mmap.PAGESIZE  # those of the import are its own
    imports = [event["name"] for event in first.events if event.get("name", "").startswith("import of planted")]
    assert imports == ["import of planted_outer"]


def test_the_finder_goes_when_the_ranges_end() -> None:
    before = list(sys.meta_path)
    with imports_as_ranges():
        assert len(sys.meta_path) == len(before) + 1
    assert sys.meta_path == before


def test_a_page_is_counted_when_it_is_touched_first() -> None:
    pages = (1 << 20) // mmap.PAGESIZE
    with mmap.mmap(-1, 1 << 20) as memory:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        before = page_faults()
        memory[:: mmap.PAGESIZE] = b"\x01" * pages
        assert pages <= page_faults() - before < 2 * pages
        memory[:: mmap.PAGESIZE] = b"\x02" * pages
        assert page_faults() - before < 2 * pages
    assert seconds_per_page_fault() > 0

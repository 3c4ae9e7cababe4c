"""What docs/measuring.md says of launches and of others' shares is what a traced step and published tables say."""

import re
from dataclasses import replace
from functools import cache

import pytest

from model.precision import PRECISIONS
from model.training import Training
from perf_tests.records.published import published_rows
from perf_tests.records.record import Json
from perf_tests.records.store import read_record
from perf_tests.traces.kernels import expected_products
from tests.support.documents import block, indented, named, page
from tests.support.example_cases import CPU, TOY, build, language_model_case, random_tokens
from tests.support.traced_rounds import rounds, traced_values

TEXT = page("measuring")


def shown(name: str) -> list[list[str]]:
    """The rows of a table of the page, without its heading."""
    return [re.split(r"\s{2,}", line.strip()) for line in indented(block(TEXT, name))[1:]]


@cache
def traced(phase: str, precision: str, layers: int) -> Json:
    config = replace(TOY, num_layers=layers)
    training, tokens = Training(build(config), PRECISIONS[precision], CPU), random_tokens(config)
    training.create_optimizer_state()
    return traced_values(language_model_case(config, phase=phase), *rounds(training, tokens)[phase])


@pytest.mark.parametrize("layers", [1, 3])
def test_launches_and_products_are_those_of_a_trace(layers: int) -> None:
    """The page has so many a layer, so many beside, for launches in fp32 and bf16 and for products."""
    formulas = {row[0]: re.findall(r"(\d+) L \+ (\d+)", " ".join(row)) for row in shown("launches")}
    formulas = {phase: figures for phase, figures in formulas.items() if figures}
    assert list(formulas) == ["forward", "backward", "full_step"]
    for phase, figures in formulas.items():
        fp32, bf16, products = (int(of_layer) * layers + int(beside) for of_layer, beside in figures)
        assert [traced(phase, precision, layers)["launches"] for precision in ("fp32", "bf16")] == [fp32, bf16]
        counted = traced(phase, "fp32", layers)["matrix_products"]
        assert counted["count"] == counted["expected_count"] == products
    assert expected_products(language_model_case(phase="forward", attention="sdpa").identity()) is None


def test_a_published_share_is_that_of_its_source_and_so_are_the_ratios() -> None:
    assert len(shown("published")) == 5
    for source, gpu, case, *shares in shown("published"):
        found = {
            cell["scope"]: f"{cell['gemm_pct']} %"
            for cell in published_rows("gemm_share.csv")
            if cell["source"].startswith(f"{source}:")
            and (cell["gpu"], f"{cell['size']}-ctx{cell['context']}") == (gpu, case)
        }
        assert found == dict(zip(("forward", "full_step"), shares, strict=True))
    cells = [row["ratio_softmax_to_matmul"] for row in published_rows("softmax_vs_matmul.csv")]
    ratios = [float(figure) for cell in cells for figure in cell.split("-") if figure]
    assert f"reach from {min(ratios):.2f} to {max(ratios):.2f}" in " ".join(TEXT.split())


def test_the_measured_table_is_the_records_and_products_take_more_of_a_cpu_than_of_any_gpu_in_fp32_alone() -> None:
    passes = read_record(named(block(TEXT, "measured"), r"json\.xz")).data["passes"]
    kernels = [row for row in passes if row["pass"] == "kernels" and row["identity"].get("size") == "small"]
    found = {(row["identity"]["phase"], row["identity"]["precision"]): row["values"] for row in kernels}

    def share(phase: str, precision: str) -> float:
        return float(found[phase, precision]["matrix_products"]["share_of_kernel_time"])

    def softmax(way: str, precision: str) -> str:
        return f"{found[way, precision]['attention'][way]['softmax_over_products_time']:.2f}"

    both = ("fp32", "bf16")
    expected = {
        "softmax over products, forward": [softmax("forward", of) for of in both],
        "softmax over products, backward": [softmax("backward", of) for of in both],
        "busy, forward": [f"{found['forward', of]['busy_share']:.1%}" for of in both],
    }
    for place, phase in enumerate(("forward", "full_step")):
        expected[f"matrix products, of {phase.replace('_', ' ')}"] = [f"{share(phase, of):.1%}" for of in both]
        expected[f"launches, {phase.replace('_', ' ')}"] = [str(found[phase, of]["launches"]) for of in both]
        others = [float(row[3:][place].removesuffix(" %")) for row in shown("published")]
        assert share(phase, "bf16") < share(phase, "fp32") > max(others) / 100
    assert {row[0]: row[1:] for row in shown("measured")} == expected

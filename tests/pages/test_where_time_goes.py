"""What the README says of launches and of others' shares is what a traced step and the published tables say."""

import re
from collections.abc import Callable
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

TEXT = page("where-time-goes")
LAYERS = (1, 3)

Row = tuple[str, list[tuple[int, int]]]


def formulas() -> list[Row]:
    """Each phase with its figures in fp32 and bf16 and its matrix products: so many a layer, so many beside."""
    rows = []
    for line in indented(block(TEXT, "launches")):
        figures = re.findall(r"(\d+) L \+ (\d+)", line)
        if figures:
            rows.append((line.split()[0], [(int(layer), int(beside)) for layer, beside in figures]))
    return rows


@cache
def traced(phase: str, precision: str, layers: int) -> Json:
    config = replace(TOY, num_layers=layers)
    training, tokens = Training(build(config), PRECISIONS[precision], CPU), random_tokens(config)
    training.create_optimizer_state()
    return traced_values(language_model_case(config, phase=phase), *rounds(training, tokens)[phase])


@pytest.mark.parametrize("phase, figures", formulas())
@pytest.mark.parametrize("layers", LAYERS)
def test_launches_and_products_are_those_of_a_trace(phase: str, figures: list[tuple[int, int]], layers: int) -> None:
    fp32, bf16, products = (of_layer * layers + beside for of_layer, beside in figures)
    assert [traced(phase, precision, layers)["launches"] for precision in ("fp32", "bf16")] == [fp32, bf16]
    counted = traced(phase, "fp32", layers)["matrix_products"]
    assert counted["count"] == counted["expected_count"] == products
    assert expected_products(language_model_case(phase=phase, attention="sdpa").identity()) is None


def shown(name: str = "published") -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in indented(block(TEXT, name))[1:]]


def test_there_are_phases_and_shares_to_compare() -> None:
    assert [phase for phase, _ in formulas()] == ["forward", "backward", "full_step"]
    assert len(shown()) == 5


@pytest.mark.parametrize("row", shown())
def test_a_published_share_is_that_of_its_source(row: list[str]) -> None:
    source, gpu, case, *shares = row
    cells = [cell for cell in published_rows("gemm_share.csv") if cell["source"].startswith(f"{source}:")]
    found = {
        cell["scope"]: f"{cell['gemm_pct']} %"
        for cell in cells
        if (cell["gpu"], f"{cell['size']}-ctx{cell['context']}") == (gpu, case)
    }
    assert found == dict(zip(("forward", "full_step"), shares, strict=True))


def measured(phase: str, precision: str) -> Json:
    """What the record that the page names says of `small`."""
    asked = {"phase": phase, "size": "small", "precision": precision}
    passes = read_record(named(block(TEXT, "measured"), "json")).data["passes"]
    (found,) = (row for row in passes if row["pass"] == "kernels" and asked.items() <= row["identity"].items())
    return dict(found["values"])


def test_the_measured_table_is_the_records() -> None:
    by_phase = {phase: [measured(phase, precision) for precision in ("fp32", "bf16")] for phase in FIGURE_OF_PHASE}
    expected = {
        f"{label} {phase.replace('_', ' ')}": [figure(values) for values in by_phase[phase]]
        for phase, figures in FIGURE_OF_PHASE.items() for label, figure in figures.items()
    }  # fmt: skip
    assert {row[0]: row[1:] for row in shown("measured")} == expected


def share(values: Json) -> str:
    return f"{values['matrix_products']['share_of_kernel_time']:.1%}"


def softmax(way: str) -> Callable[[Json], str]:
    return lambda values: f"{values['attention'][way]['softmax_over_products_time']:.2f}"


def launches(values: Json) -> str:
    return f"{values['launches']}"


FIGURE_OF_PHASE: dict[str, dict[str, Callable[[Json], str]]] = {
    "forward": {
        "matrix products, of": share, "launches,": launches,
        "busy,": lambda values: f"{values['busy_share']:.1%}", "softmax over products,": softmax("forward"),
    },
    "full_step": {"matrix products, of": share, "launches,": launches},
    "backward": {"softmax over products,": softmax("backward")},
}  # fmt: skip


def test_the_ratios_of_others_are_the_published_ones() -> None:
    cells = [row["ratio_softmax_to_matmul"] for row in published_rows("softmax_vs_matmul.csv")]
    ratios = [float(figure) for cell in cells for figure in cell.split("-") if figure]
    assert f"reach from {min(ratios):.2f} to {max(ratios):.2f}" in " ".join(TEXT.split())


def test_in_fp32_products_take_more_of_this_cpu_than_of_any_published_gpu() -> None:
    published = [[float(cell.removesuffix(" %")) for cell in row[3:]] for row in shown()]
    for phase, shares in zip(("forward", "full_step"), zip(*published, strict=True), strict=True):
        here = {name: measured(phase, name)["matrix_products"]["share_of_kernel_time"] for name in ("fp32", "bf16")}
        assert 100 * here["fp32"] > max(shares)
        assert here["bf16"] < here["fp32"]

"""The tables of the course's exercises on precision, and the numbers in them; `pytest numerics_tests -k exercises -s`.

Stanford CS336, assignment 2, "Mixed Precision" and "Accumulation". The other files say why each number is what it is.
"""

import pytest

from numerics_tests.harness.exercises import Rows, layer_norms, tables

EXPECTED: dict[str, tuple[str, Rows]] = {
    "accumulation": (
        "0.01 added a thousand times. 1000 x 0.01 as float16 stores it is 10.0021362 already: float32 adds it\n"
        "exactly, and float16 loses .049 by rounding after each addition (test_accumulation.py).",
        (
            ("Loop", "total", "error of the number", "error of the additions"),
            ("fp32", "10.00013351", "-2.24e-07", "+0.000134"),
            ("fp16", "9.953125", "+0.00214", "-0.049"),
            ("fp32-of-fp16", "10.00213623", "+0.00214", "+0"),
            ("fp32-of-fp16-cast", "10.00213623", "+0.00214", "+0"),
        ),
    ),
    "partial_sums": (
        "The first five sums. Step 3 rounds down by 2^-17, step 4 up by as much: equal again by accident.",
        (
            ("Additions", "fp16", "fp32 of fp16"),
            ("1", "0.0100021362", "0.0100021362"),
            ("2", "0.0200042725", "0.0200042725"),
            ("3", "0.0299987793", "0.0300064087"),
            ("4", "0.0400085449", "0.0400085449"),
            ("5", "0.0500183105", "0.0500106812"),
        ),
    ),
    "stored": (
        "0.01 as each format holds it: no binary format has it.",
        (
            ("Format", "stored", "relative error"),
            ("fp32", "0.0099999998", "-2.24e-08"),
            ("fp16", "0.0100021362", "+2.14e-04"),
            ("bf16", "0.0100097656", "+9.77e-04"),
        ),
    ),
    "stagnation": (
        "Where a running sum in the format stops for good.",
        (
            ("Format", "sum of hundredths", "sum of ones"),
            ("fp16", "32", "2048"),
            ("bf16", "4", "256"),
        ),
    ),
    "toy_model": (
        "The dtype of each part of ToyModel under autocast. layer_norm is on CUDA's list of operations in float32\n"
        "and not on the CPU's, where it runs in the dtype of its input. Published answers are CUDA's.",
        (
            ("Part", "cuda, fp16", "cuda, bf16", "cpu, fp16", "cpu, bf16"),
            ("parameters", "float32", "float32", "float32", "float32"),
            ("fc1", "float16", "bfloat16", "float16", "bfloat16"),
            ("norm", "float32", "float32", "float16", "bfloat16"),
            ("logits", "float16", "bfloat16", "float16", "bfloat16"),
            ("loss", "float32", "float32", "float32", "float32"),
            ("loss outside", "float16", "bfloat16", "float16", "bfloat16"),
            ("gradients", "float32", "float32", "float32", "float32"),
        ),
    ),
    "inverse_rms": (
        "rsqrt(mean(x^2)) of x = 1e3, which is 0.001: its square is beyond float16's 65504 (test_norms.py).",
        (
            ("Format", "of 1000"),
            ("fp16", "0"),
            ("bf16", "0.0009995"),
            ("fp32", "0.001"),
        ),
    ),
    "norms": (
        "RMSNorm in its own format and with its sums in float32.",
        (
            ("Input", "in its own format", "in float32, as the model"),
            ("about 1000, fp16", "all zero", "within its bound"),
            ("about 1000, bf16", "beyond its bound", "within its bound"),
            ("2^-13, fp16", "infinite", "within its bound"),
        ),
    ),
    "layer_norms": (
        "LayerNorm part by part in its own format. Mean and variance are the sensitive parts: 300^2 is beyond\n"
        "float16, and one rounding to bfloat16 moves a mean of 1000 by up to 2 before it is taken off.",
        (
            ("Input", "mean", "variance", "result in its own format", "result in float32"),
            ("about 1000, fp16", "off by one rounding", "infinite", "all zero", "within its bound"),
            ("about 1000, bf16", "off by one rounding", "off by one rounding", "beyond its bound", "within its bound"),
        ),
    ),
}


@pytest.fixture(scope="module")
def found() -> dict[str, Rows]:
    return {**tables(), "layer_norms": layer_norms()}


@pytest.mark.parametrize("name", EXPECTED)
def test_exercises(name: str, found: dict[str, Rows]) -> None:
    """The table as this machine computes it is the one above, digit by digit."""
    about, expected = EXPECTED[name]
    widths = [max(map(len, column)) for column in zip(*found[name], strict=True)]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in found[name])
    print(f"\n\n{about}\n", *lines, sep="\n")
    assert found[name] == expected


def test_exercises_are_all_shown(found: dict[str, Rows]) -> None:
    """A table that the write-up prints and nobody asserts could say anything."""
    assert found.keys() == EXPECTED.keys()

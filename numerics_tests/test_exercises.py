"""The tables of the course's exercises on precision, and the numbers in them; `pytest numerics_tests -k exercises -s`.

Stanford CS336, assignment 2, "Mixed Precision" and "Accumulation". The other files say why each number is what it is.
"""

import pytest

from perf_tests_suite.numerics_tests.harness.exercises import Rows, tables

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
            ("about 1000, fp16", "all zero", "0.96 x its bound"),
            ("about 1000, bf16", "2.2 x its bound", "0.99 x its bound"),
            ("2^-13, fp16", "infinite", "0.46 x its bound"),
        ),
    ),
    "layer_norms": (
        "LayerNorm part by part in its own format; u is the largest relative error of one rounding. Mean and variance\n"
        "are the sensitive parts: 300^2 is beyond float16. torch's mean adds in float32 and rounds once, so it is off\n"
        "by less than u, which of a mean of 1000 in bfloat16 is 4 before it is taken off.",
        (
            ("Input", "mean", "variance", "result in its own format", "result in float32"),
            ("about 1000, fp16", "off by 0.91 u", "infinite", "all zero", "0.86 x its bound"),
            ("about 1000, bf16", "off by 0.87 u", "off by 0.76 u", "1.8e+02 x its bound", "0.94 x its bound"),
        ),
    ),
    "scaling": (
        "The gradient of a float32 weight through a float16 product: 2^-25 is half of float16's smallest number, and\n"
        "rounds to 0 unless the loss is scaled; bfloat16 has the range of float32 (test_precisions.py).",
        (
            ("dL/dy", "fp16", "fp16, loss scaled by 2^15", "bf16"),
            ("2^-24", "5.96e-08", "5.96e-08", "5.96e-08"),
            ("2^-25", "0", "2.98e-08", "2.98e-08"),
            ("2^-39", "0", "1.82e-12", "1.82e-12"),
        ),
    ),
    "states": (
        "What training keeps: a change below half a unit in the last place is lost, so that bfloat16 weights and\n"
        "second moments stand still, unless they are rounded by chance; then the mean is right (test_formats.py).",
        (
            ("State", "fp32", "bf16", "bf16, rounded by chance"),
            ("weight of 1, 100 steps of .001", "0.90", "1.00", "0.90"),
            ("mean of squares, 3000 gradients of 1", "0.95", "0.25", "0.95"),
        ),
    ),
    "noise": (
        "Whether rounding noise averages out, in u of bfloat16 relative to the result. In a product it stays what it\n"
        "is in the inputs, in a sum of one sign it falls with the root of the length; an error that a whole row\n"
        "shares, as that of a norm's inverse root, stays in its mean (test_why_mixed_precision.py).",
        (
            ("Where", "64 terms", "4096 terms"),
            ("product of rounded inputs", "0.62", "0.6"),
            ("sum of rounded terms of one sign", "0.066", "0.0082"),
            ("mean error of a row, elements rounded", "0.046", "0.0055"),
            ("mean error of a row, its inverse root rounded", "0.35", "0.41"),
        ),
    ),
}


@pytest.fixture(scope="module")
def found() -> dict[str, Rows]:
    return tables()


@pytest.mark.parametrize("name", EXPECTED)
def test_exercises(name: str, found: dict[str, Rows]) -> None:
    """The table as this machine computes it is the one above, digit by digit."""
    about, expected = EXPECTED[name]
    widths = [max(map(len, column)) for column in zip(*found[name], strict=True)]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in found[name])
    print(f"\n\n{about}\n", *lines, sep="\n")
    assert found[name] == expected


def test_exercises_are_all_shown(found: dict[str, Rows]) -> None:
    """A table that nobody asserts could say anything."""
    assert found.keys() == EXPECTED.keys()

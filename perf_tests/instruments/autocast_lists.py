"""What CUDA's autocast casts each operator to, read from ATen/autocast_mode.h of the installed torch."""

import re
from pathlib import Path

import torch

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
LISTS = {
    "low": "AT_FORALL_LOWER_PRECISION_FP",
    "float32": "AT_FORALL_FP32",
    "set dtype": "AT_FORALL_FP32_SET_OPT_DTYPE",
    "append dtype": "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE",
    "widest": "AT_FORALL_PROMOTE",
}


def op_lists(header: str) -> dict[str, list[str]]:
    """Operators with their overload, such as `softmax.int`, by policy; raises ValueError where a policy is missing."""
    # A line that ends in a backslash continues in the next.
    joined = header.replace("\\\n", " ")
    lists = {}
    for policy, macro in LISTS.items():
        found = re.search(rf"#define {macro}\(_\)(.*)", joined)
        if found is None:
            raise ValueError(f"{HEADER} defines no {macro}; this torch lists its operators in another way.")
        if policy == "append dtype":
            lists[policy] = re.findall(r'"([\w.]+)"', found[1])
        else:
            lists[policy] = [".".join(filter(None, pair)) for pair in re.findall(r"_\((\w+)(?:,\s*(\w+))?\)", found[1])]
    return lists


def cuda_lists() -> dict[str, list[str]]:
    """Those of the installed torch."""
    return op_lists(HEADER.read_text())

"""What is counted for models of transformers, given with `hf:`, against what they themselves and the allocator say.

Small random ones of five architectures, in float32 on a CPU. Needs the extra `hf`.
"""

import importlib.util
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from claims.predicted_cpu_peak import above_standing, rounds
from claims.suite_against_loop import LIMITS, SUITE, phases_agree
from claims.verdict import conclude, conditions
from model.precision import PRECISIONS
from model.training import Training, cross_entropy
from perf_tests.cases.language_model import LanguageModelCase
from perf_tests.predict.counters import Counters, counters_of
from perf_tests.user_code.model import OwnModel, configured_shape
from tests.support.allocator_peak import allocator_peak_bytes
from tests.support.launches import launch_suite

LIMIT = 0.001
BATCH_SIZE, CONTEXT, VOCABULARY = 2, 128, 5000
LAYERS, HEADS, WIDTH = 3, 4, 128
PHASES = ("forward", "backward", "full_step")
AGAINST_LOOP = ("--context", str(CONTEXT), "--rounds", "300", "-k", "not nothing")

_LLAMA: dict[str, object] = {
    "hidden_size": WIDTH, "intermediate_size": 352, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
}  # fmt: skip
CONFIGURATIONS: dict[str, dict[str, object]] = {
    "gpt2": {
        "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 256, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "llama": _LLAMA, "qwen2": _LLAMA, "mistral": _LLAMA,
    "opt": {
        "hidden_size": WIDTH, "word_embed_proj_dim": WIDTH, "ffn_dim": 512, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "max_position_embeddings": 256, "dropout": 0.0,
    },
}  # fmt: skip
"""Without dropout, which PyTorch's formula of fused attention would show as another kernel."""


def main() -> int:
    if importlib.util.find_spec("transformers") is None:
        print("There is no model of transformers to count here; install them with `pip install '.[hf]'`.")
        return 2
    torch.set_num_threads(1)
    print(conditions(1))
    with tempfile.TemporaryDirectory() as folder:
        paths = [written(Path(folder, f"{kind}.json"), values) for kind, values in CONFIGURATIONS.items()]
        failures = [found for case in cases(paths) for found in differences(case)]
        agree = phases_agree(launch_suite([*SUITE, *AGAINST_LOOP, "--model", f"hf:{paths[0]}"]).benchmarks)
    claim = (
        f"models of {', '.join(CONFIGURATIONS)} are counted as they are, their CPU peaks within {LIMIT:.1%}, and the "
        f"time of {paths[0].stem} is a hand-written loop's within {LIMITS[0]} to {LIMITS[1]}"
    )
    return conclude(claim, not failures and agree)


def written(path: Path, values: dict[str, object]) -> Path:
    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    path.write_text(json.dumps({"model_type": path.stem, "vocab_size": VOCABULARY, **ends, **values}))
    return path


def cases(paths: Iterable[Path]) -> Iterator[LanguageModelCase]:
    for path, attention in product(paths, ("eager", "sdpa")):
        own = OwnModel(f"hf:{path}", (f"attn_implementation={attention}",))
        yield LanguageModelCase(
            "forward", path.stem, configured_shape(own, CONTEXT), CONTEXT, BATCH_SIZE, "fp32", "own", "eager", "none",
            "loop", "cpu", own.name, own.arguments,
        )  # fmt: skip


def differences(case: LanguageModelCase) -> list[str]:
    """Print the case's figures; a line for each that is not what it should be."""
    assert case.own is not None
    torch.manual_seed(0)
    model = case.own.build(case.config)
    tokens_BT = torch.randint(case.config.vocab_size, (case.batch_size, case.context_length))
    counted = {phase: counters_of(replace(case, phase=phase)) for phase in PHASES}
    failures = [*_parameters(counted["forward"], model), *_flops(case, counted, model, tokens_BT)]
    failures += _peaks(counted, model, tokens_BT)
    for line in failures:
        print(f"    {case.size} {case.own.arguments[0]}: {line}")
    return failures


def _parameters(counters: Counters, model: nn.Module) -> list[str]:
    its_own = sum(parameter.numel() for parameter in model.parameters())
    return [] if counters.parameters == its_own else [f"{counters.parameters} parameters, the module has {its_own}"]


def _flops(
    case: LanguageModelCase, counted: dict[str, Counters], model: nn.Module, tokens_BT: torch.Tensor
) -> list[str]:
    """Against PyTorch's counter on the real model; it lacks the two T x T products of the CPU's fused kernel."""
    assert case.own is not None
    is_fused = "attn_implementation=sdpa" in case.own.arguments
    square = 4 * case.batch_size * case.context_length**2 * WIDTH * LAYERS if is_fused else 0
    with FlopCounterMode(display=False) as forward:
        logits_BTV = model(tokens_BT)
    loss = cross_entropy(logits_BTV, tokens_BT)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    model.zero_grad(set_to_none=True)
    failures = []
    for phase, counter, squares in (("forward", forward, square), ("backward", backward, 2 * square)):
        mine, theirs = counted[phase].model_flops, counter.get_total_flops() + squares
        print(f"{case.size:8} {case.own.arguments[0]:27} {phase:10} {mine:>16,} FLOPs {theirs:>16,}")
        failures += [] if mine == theirs else [f"{phase}: {mine} FLOPs, not {theirs}"]
    return failures


def _peaks(counted: dict[str, Counters], model: nn.Module, tokens_BT: torch.Tensor) -> list[str]:
    training = Training(model, PRECISIONS["fp32"], torch.device("cpu"), "loop")
    plays, failures = rounds(training, tokens_BT), []
    for phase in PHASES:
        if phase == "full_step":
            training.create_optimizer_state()
        predicted, measured = above_standing(counted[phase]), allocator_peak_bytes(plays[phase])
        training.clear_gradients()
        error = predicted / measured - 1
        print(f"{'':36} {phase:10} {predicted:>16,} bytes {measured:>16,}  {error:+.4%}")
        failures += [f"{phase}: peak {error:+.2%} off"] if not math.isclose(predicted, measured, rel_tol=LIMIT) else []
    return failures


if __name__ == "__main__":
    sys.exit(main())

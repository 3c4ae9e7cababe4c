"""The factories that `docs/your-own.md` shows for three known repositories run on stand-ins of the same shape."""

import re
from pathlib import Path

import pytest

from perf_tests_suite.perf_tests import IMPORTABLE
from tests.support.documents import indented, page
from tests.support.forked_python import forked_python
from tests.support.git_repository import commit
from tests.support.launch import ROOT, finish, start_command

NANO_GPT = """
from dataclasses import dataclass
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.tests.support.stand_ins import {stand_in}

@dataclass
class GPTConfig:
    {length}: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int
{more}
    def shape(self):
        return ModelConfig(
            d_model=self.n_embd, d_ff=4 * self.n_embd, num_layers=self.n_layer, num_heads=self.n_head,
            context_length=self.{length}, vocab_size=self.vocab_size,
        )
"""
OF_NANO_GPT = """
class GPT(NanoGpt):
    def __init__(self, config):
        super().__init__(config.shape())
"""
OF_NANOCHAT = """
import torch

class GPT(Nanochat):
    def __init__(self, config):
        self.of = config.shape()
        assert torch.empty(()).device.type == "meta"
        super().__init__(self.of)

    def init_weights(self):
        with torch.device("cpu"):
            filled = Nanochat(self.of)
        self.load_state_dict(filled.state_dict())
        self.cos = filled.cos
"""
OF_TRANSFORMERS = """
import json
from types import SimpleNamespace
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.tests.support.stand_ins import LossInAnObject, CausalLMOutput

class Causal(LossInAnObject):
    def forward(self, input_ids, labels=None):
        if labels is None:
            return CausalLMOutput(logits=self.lm_head(self.hidden(input_ids)))
        return super().forward(input_ids, labels)

class AutoConfig:
    @staticmethod
    def from_pretrained(folder, **changes):
        with open(f"{folder}/config.json") as file:
            return SimpleNamespace(**{**json.load(file), **changes})

class AutoModelForCausalLM:
    @staticmethod
    def from_config(config):
        shape = {"d_ff": 64, "num_layers": 1, "num_heads": 2, "context_length": 64}
        return Causal(ModelConfig(d_model=config.hidden_size, vocab_size=config.vocab_size, **shape))
"""
FILES = {
    "nanoGPT": {"model.py": NANO_GPT.format(stand_in="NanoGpt", length="block_size", more="") + OF_NANO_GPT},
    "nanochat": {
        "nanochat/__init__.py": "",
        "nanochat/gpt.py": NANO_GPT.format(stand_in="Nanochat", length="sequence_len", more="    n_kv_head: int")
        + OF_NANOCHAT,
    },
    "A trainer of transformers": {
        "transformers.py": OF_TRANSFORMERS, "config/config.json": '{"hidden_size": 16, "vocab_size": 5}',
    },
}  # fmt: skip
PAGE = page("your-own").partition("## nanoGPT, nanochat, transformers")[2].partition("\n## ")[0]
SHOWN = {
    text: indented(block) for text, block in re.findall(r"^(\S[^\n]*):\n\n((?:    [^\n]*\n|\n)+)", PAGE, re.MULTILINE)
}
QUICK = (
    "-p", "perf_tests_suite.tests.support.quick_ceiling", "-p", "perf_tests_suite.tests.support.quick_gate",
    "-p", "no:cacheprovider", "--device=cpu", "--threads=1", "--size=tiny", "--vocab-size=37", "--context=8",
    "--precision=fp32", "--phase=forward", "--model=perf.py:build", "--rounds=2", "--against=main",
)  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_factory_that_the_page_shows_is_gated_in_twelve_lines(name: str, tmp_path: Path) -> None:
    (lines,) = (lines for text, lines in SHOWN.items() if text.startswith(name))
    assert 0 < len(lines) <= 12
    theirs = tmp_path / "theirs"
    for file, text in {"perf.py": "\n".join(lines), **FILES[name]}.items():
        (theirs / file).parent.mkdir(parents=True, exist_ok=True)
        (theirs / file).write_text(text + "\n")
    commit(theirs)
    (theirs / "perf.py").write_text("# measured\n" + "\n".join(lines))
    command = [forked_python(), "-m", "pytest", str(ROOT / "perf_tests"), *QUICK]
    variables = {"PYTHONPATH": str(IMPORTABLE), "PYTHONSAFEPATH": "1", "TMPDIR": str(tmp_path)}
    ended = finish(start_command(command, theirs, ROOT, **variables), tmp_path)
    assert (ended.exit_code, "gate: PASSED (1 SAME)" in ended.output) == (0, True), ended.output + ended.errors

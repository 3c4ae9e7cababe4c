"""Models for `--model`: some misbehave at a known place and are else the suite's own Transformer, some are simpler.

A planted fault spares what the suite does before a case: inputs of batch 1, with which it checks a model, and tensors
without content, on which it counts.
"""

import ctypes
import errno
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import torch
from torch import Tensor, nn
from torch.nn.init import trunc_normal_

from perf_tests_suite.model.attention import ATTENTION
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.model.transformer import TransformerLM
from perf_tests_suite.perf_tests.hardware.torch_private import is_fake


class Healthy(TransformerLM):
    """Counts the forward passes of real batches."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, ATTENTION["naive"].build())
        self.calls = 0

    def forward(self, tokens_BT: Tensor) -> Tensor:
        if len(tokens_BT) > 1 and not is_fake(tokens_BT):
            self.calls += 1
            self.before_forward()
        return super().forward(tokens_BT)

    def before_forward(self) -> None:
        return


def strike() -> None:
    """Send this process the signal PLANTED_SIGNAL, if there is one, as in a terminal.

    A process started in the background ignores Ctrl-C, and its children with it.
    """
    if "PLANTED_SIGNAL" in os.environ:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), signal.Signals[os.environ["PLANTED_SIGNAL"]])


class DiesAt16(Healthy):
    """Takes its process along at context 16, where there is a signal to do so."""

    def before_forward(self) -> None:
        if self.config.context_length == 16:
            strike()


def fail() -> None:
    raise RuntimeError("planted")


def replace_the_clock() -> None:
    real = time.perf_counter
    time.perf_counter = lambda: real() / 3


MISBEHAVIOUR: dict[int, Callable[[], object]] = {
    16: fail,
    24: lambda: sys.exit(0),
    32: lambda: torch.set_default_dtype(torch.float64),
    40: lambda: torch.set_default_device("meta"),
    48: lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    56: lambda: print("planted " * 1000),
    74: replace_the_clock,
    76: lambda: torch.set_float32_matmul_precision("medium"),
    78: os.fork,
    80: strike,
}


class MisbehavesByContext(Healthy):
    """A model that misbehaves from its second pass on, in a way of its own at each context; at 60 from the first."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        if tokens_BT.shape[1] == 60:  # where it can neither be checked nor measured
            raise ValueError("no sixty")
        logits_BTV = super().forward(tokens_BT)
        if self.calls >= 2 and self.config.context_length == 64:
            return logits_BTV * float("nan")
        if self.calls >= 2 and self.config.context_length == 72:
            tokens_BT.zero_()
        return logits_BTV

    def before_forward(self) -> None:
        if self.calls == 2:
            MISBEHAVIOUR.get(self.config.context_length, lambda: None)()


class EndsTheProcessAt16(Healthy):
    """A model that ignores, at context 8, the signals that end a run, and at 16 ends the process as if all were
    well.
    """

    def before_forward(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.config.context_length == 16:
            os._exit(0)


class EndsFromCAt16(Healthy):
    """End the process past Python, whose `os._exit` the suite holds."""

    def before_forward(self) -> None:
        if self.config.context_length == 16 and self.calls == 2:
            ctypes.CDLL(None)._exit(0)


class WaitsAt16(Healthy):
    """Stands still at context 16 until the file PLANTED_GATE exists, if there is one to wait for."""

    def before_forward(self) -> None:
        if self.config.context_length == 16 and "PLANTED_GATE" in os.environ:
            while not Path(os.environ["PLANTED_GATE"]).exists():
                time.sleep(0.05)


class DiskFillsAt16(Healthy):
    """A full disk: from context 16 on no file may grow beyond what the journal under PLANTED_STORAGE holds, and a
    little more.
    """

    def before_forward(self) -> None:
        if self.config.context_length == 16 and "PLANTED_STORAGE" in os.environ:
            (journal,) = Path(os.environ["PLANTED_STORAGE"]).glob("*/journal-*")
            limit = journal.stat().st_size + 100
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


class DiskTurnsReadOnly(Healthy):
    """A closed folder: once a batch is seen no file gets a new name, where PLANTED_READ_ONLY says so."""

    def before_forward(self) -> None:
        if "PLANTED_READ_ONLY" in os.environ:
            os.link = Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS)))


class FailsWithoutGraph(Healthy):
    """A model that without a graph raises at context 16 in its third round; at 24 its logits are no numbers. With one:
    works.
    """

    def before_forward(self) -> None:
        if self.config.context_length == 16 and self.calls == 3 and not torch.is_grad_enabled():
            raise RuntimeError("planted in the third round")

    def forward(self, tokens_BT: Tensor) -> Tensor:
        is_planted = len(tokens_BT) > 1 and self.config.context_length == 24 and not torch.is_grad_enabled()
        logits_BTV = super().forward(tokens_BT)
        return logits_BTV * float("nan") if is_planted else logits_BTV


class Everything(FailsWithoutGraph):
    """A model that at contexts of 32 and more takes memory too: without a graph until there is none, with one nearly
    as much.

    What it takes is address space, never touched, so that the machine itself has memory left: 64 MiB a chunk.
    """

    chunks_until_the_end = 0

    def before_forward(self) -> None:
        super().before_forward()
        held: list[Tensor] = []
        if self.config.context_length >= 32 and torch.is_grad_enabled():
            torch.empty((self.chunks_until_the_end - 2) * 2**26, dtype=torch.uint8)
        elif self.config.context_length >= 32:
            while True:
                Everything.chunks_until_the_end = len(held)
                held.append(torch.empty(2**26, dtype=torch.uint8))


class OutOfMemoryOnRequest(Healthy):
    """Asks for more than any machine has, where PLANTED_MEMORY says so."""

    def before_forward(self) -> None:
        if "PLANTED_MEMORY" in os.environ:
            torch.empty(2**50, dtype=torch.uint8)


class Logged(Healthy):
    """A model that writes to the file PLANTED_LOG each build for a case, and in its first forward pass the sum of its
    weights.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.last_case = ""
        is_real = not is_fake(next(self.parameters()))
        if is_real and "PYTEST_CURRENT_TEST" in os.environ:
            log("built")

    def before_forward(self) -> None:
        case = os.environ["PYTEST_CURRENT_TEST"].partition(" ")[0]
        if case != self.last_case:
            self.last_case = case
            weights = [parameter.detach().double().sum().item() for parameter in self.parameters()]
            log(f"{case} {sum(weights)!r}")


def log(line: str) -> None:
    with Path(os.environ["PLANTED_LOG"]).open("a") as file:
        file.write(line + "\n")


class Averaging(nn.Module):
    """No Transformer: logits from the mean of all embeddings so far. It cannot draw its weights again."""

    def __init__(self, config: ModelConfig, width: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, width)
        self.head = nn.Linear(width, config.vocab_size)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        embedded = self.embedding(tokens_BT)
        counts = torch.arange(1, tokens_BT.shape[1] + 1, device=tokens_BT.device)[:, None]
        return self.head(embedded.cumsum(1) / counts)


class AnotherInLargeBatches(Averaging):
    """Do something more with many sequences."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        logits_BTV = super().forward(tokens_BT)
        return logits_BTV.sin() if len(tokens_BT) > 1000 else logits_BTV


class TruncatedNormals(Healthy):
    """Initialised as the course asks, by a function imported by name."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        for parameter in self.parameters():
            trunc_normal_(parameter, std=0.02, a=-0.06, b=0.06)


class Converts(Averaging):
    """Converts its weights while it is built, one of them held twice, and is built without memory at first."""

    def __init__(self, config: ModelConfig) -> None:
        with torch.device("meta"):
            super().__init__(config)
        self.to_empty(device="cpu")
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.ones(4, dtype=torch.float64))
        self.embedding.to(torch.bfloat16)
        self.float()
        for parameter in self.parameters():
            nn.init.uniform_(parameter)


class Bidirectional(Averaging):
    """Sees the tokens that it is to predict."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return super().forward(tokens_BT) + super().forward(tokens_BT.flip(1)).flip(1)


class GroupsItsExperts(Averaging):
    """Fails without content as torch's grouped product does for float32."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        if is_fake(tokens_BT):
            raise RuntimeError("Expected inputs of BF16 type but got mat_a.dtype=torch.float32.")
        return super().forward(tokens_BT)


def talks(config: ModelConfig) -> nn.Module:
    print("number of parameters: 1.68M")
    return Averaging(config)


def of_another_configuration(config: ModelConfig) -> nn.Module:
    return Averaging(config, config.window_pattern)  # type: ignore[attr-defined]


def but(change: Callable[[Tensor, Tensor], Any]) -> Callable[..., nn.Module]:
    """A factory of `Averaging` that returns what `change` makes of tokens and logits."""

    def factory(config: ModelConfig, width: int = 4) -> nn.Module:
        model = Averaging(config, width)
        model.register_forward_hook(lambda module, given, logits_BTV: change(given[0], logits_BTV))
        return model

    return factory


Wrapped = but(lambda tokens_BT, logits_BTV: (logits_BTV,))
OutputObject = but(lambda tokens_BT, logits_BTV: SimpleNamespace(logits=logits_BTV))
WrongShape = but(lambda tokens_BT, logits_BTV: logits_BTV[..., :-1])
WrongShapeAt16 = but(lambda tokens_BT, logits_BTV: logits_BTV[..., tokens_BT.shape[1] == 16 :])
NotANumber = but(lambda tokens_BT, logits_BTV: logits_BTV / 0)
Halved = but(lambda tokens_BT, logits_BTV: logits_BTV.half())
ChangesItsTokens = but(lambda tokens_BT, logits_BTV: logits_BTV + 0 * tokens_BT.zero_()[..., None])
ReadsAValue = but(lambda tokens_BT, logits_BTV: logits_BTV * (1.0 if tokens_BT.sum().item() >= 0 else 2.0))
"""Nothing can count it on fake tensors."""


class Unrunnable(Averaging):
    def forward(self, tokens_BT: Tensor) -> Tensor:
        raise TypeError("an attention mask is missing")


class IgnoresContext(Averaging):
    """Each token predicts the next from itself alone."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.head(self.embedding(tokens_BT))


class Tied(Averaging):
    """Embedding and head share their matrix."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.head = nn.Linear(4, config.vocab_size, bias=False)
        self.head.weight = self.embedding.weight


class GroupedHeads(Averaging):
    """Fused attention of four heads over one head of keys and values."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, config.d_model)
        width = config.d_model // 4
        self.query, self.key = nn.Linear(config.d_model, config.d_model), nn.Linear(config.d_model, 2 * width)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        embedded = self.embedding(tokens_BT)
        query = self.query(embedded).unflatten(-1, (4, -1)).transpose(1, 2)
        key, value = (part.unsqueeze(1) for part in self.key(embedded).chunk(2, dim=-1))
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.head(attended.transpose(1, 2).flatten(2))


class WithAnRnn(Averaging):
    """Its products are inside an operation that no formula knows."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.rnn = nn.Bilinear(4, 4, 4)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        embedded = self.embedding(tokens_BT)
        return self.head(self.rnn(embedded, embedded).cumsum(1))


class Hoarding(Averaging):
    """Keeps a tensor for every later model."""

    counts: dict[int, Tensor] = {}  # noqa: RUF012

    def forward(self, tokens_BT: Tensor) -> Tensor:
        length = tokens_BT.shape[1]
        counts = self.counts.setdefault(length, torch.arange(1.0, length + 1)[:, None])
        return self.head(self.embedding(tokens_BT).cumsum(1) / counts)


def no_module(config: ModelConfig) -> str:
    return "no module"


def raises(config: ModelConfig) -> nn.Module:
    raise KeyError("hidden_size")


def half_parameters(config: ModelConfig) -> nn.Module:
    return Averaging(config).half()


def exits(config: ModelConfig) -> nn.Module:
    sys.exit(3)


def never_returns(config: ModelConfig) -> nn.Module:
    while True:
        time.sleep(0.1)


def of_width(*, width: int, vocab_size: int = 10_000) -> nn.Module:
    """Takes nothing but --model-arg."""
    return Averaging(ModelConfig(4, 4, 1, 1, vocab_size), width)


def runs_out_of_memory(config: ModelConfig) -> nn.Module:
    raise MemoryError


class OfRankOne(Healthy):
    """A model that on rank 1 misbehaves at context 16 as PLANTED_FAULT says: runs out of memory, raises, hangs or
    dies.
    """

    def before_forward(self) -> None:
        if self.config.context_length != 16 or os.environ.get("RANK") != "1":
            return
        match os.environ.get("PLANTED_FAULT"):
            case "memory":
                raise MemoryError("planted on rank 1")
            case "error":
                raise RuntimeError("planted on rank 1")
            case "hang":
                time.sleep(600)
            case "death":
                os.kill(os.getpid(), signal.SIGKILL)


# Models with one unusual part each, which a figure or a check must not overlook.


class FrozenEmbedding(Averaging):
    """Trains its head alone."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, width=32)
        self.embedding.requires_grad_(False)


class BufferedEmbedding(FrozenEmbedding):
    """The same model, where the frozen matrix is not a parameter."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        weight = self.embedding.weight.detach()
        del self.embedding.weight
        self.embedding.register_buffer("weight", weight)


class Convolving(Averaging):
    """Its tokens are mixed by a convolution in groups, which may be a transposed one."""

    def __init__(self, config: ModelConfig, groups: int = 1, kind: str = "Conv1d") -> None:
        super().__init__(config, width=8)
        self.mixing = getattr(nn, kind)(8, 8, 3, groups=groups, bias=False)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        mixed = self.mixing(nn.functional.pad(self.embedding(tokens_BT).mT, (2, 0)))[..., : tokens_BT.shape[1]]
        return self.head(mixed.mT)


class ConvolvingFrozen(Convolving):
    """Its convolution's input needs no gradient."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding.requires_grad_(False)


class Dropping(Averaging):
    """Drops out a half of each token, which it predicts the next from alone."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.head(nn.functional.dropout(self.embedding(tokens_BT), training=self.training))


class DroppingOfAll(Averaging):
    """Drops out a half of the mean of all tokens so far."""

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return nn.functional.dropout(super().forward(tokens_BT), training=self.training)

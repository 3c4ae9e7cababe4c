"""A model of the user's is known by itself, and what cannot be measured is refused in a sentence before measuring."""

import json
import sys
import textwrap
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from perf_tests_suite.model.precision import PRECISIONS
from perf_tests_suite.model.sizes import ModelConfig
from perf_tests_suite.perf_tests.cases.selected import is_inside
from perf_tests_suite.perf_tests.hardware.torch_private import FakeTensorMode
from perf_tests_suite.perf_tests.predict.counters import counters_of, counters_or_reason
from perf_tests_suite.perf_tests.user_code import model as user_models
from perf_tests_suite.perf_tests.user_code.given import SHAPE, UserModel, argument, check_configuration, size_name
from perf_tests_suite.perf_tests.user_code.guard import UserCodeError
from perf_tests_suite.perf_tests.user_code.model import build_model, check_before_measuring, configured_shape, facts_of
from perf_tests_suite.perf_tests.user_code.named import load
from perf_tests_suite.perf_tests.user_code.own_loss import OwnLossTraining
from tests.support.example_cases import CPU, SETTINGS, TOY, language_model_case
from tests.support.launch import MODELS, Verb

REFUSED = {
    "no_such_factory": "has no 'no_such_factory'; it has ",
    "raises": "builds no model: KeyError: 'hidden_size'",
    "never_returns": r"builds no model: it did not return within 1\.\d s, in which it computed for .* busy machine",
    "Bidirectional": "is not a causal language model: logits of earlier tokens change with the last token",
    "no_module": "returned a str; it must return an nn.Module",
    "half_parameters": "has parameters of torch.float16",
    "Halved": "returned logits of torch.float16",
    "WrongShape": r"returned \(1, 8, 36\) for tokens of shape \(1, 8\); it must return logits of shape \(1, 8, 37\)",
    "ChangesItsTokens": "changed its tokens in place",
    "NotANumber": "returned logits that are not finite",
    "IgnoresContext": "ignores its context",
    "Hoarding": "keeps a tensor from one build to the next",
    "Unrunnable": r"fails on tokens of shape \(1, 8\): TypeError: an attention mask is missing",
}


def planted(factory: str, *arguments: str) -> UserModel:
    return UserModel(f"{MODELS}:{factory}", arguments)


@pytest.mark.parametrize("factory", REFUSED)
def test_what_cannot_be_measured_is_refused_in_one_sentence(factory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if factory == "never_returns":  # no other, because a loaded machine may take as long to build one
        monkeypatch.setattr("perf_tests_suite.perf_tests.user_code.model.LONGEST_SECONDS", 0.2)
    with pytest.raises(UserCodeError, match=REFUSED[factory]) as refusal:
        check_before_measuring(planted(factory), [TOY], CPU)
    assert str(refusal.value).startswith(f"--model {MODELS}:{factory} ")
    assert ". " not in str(refusal.value)


def test_logits_may_be_bare_or_in_a_tuple_or_an_object() -> None:
    for factory in ("Averaging", "Wrapped", "OutputObject", "Tied", "ReadsAValue"):
        for sizes in ([TOY.at_context(1), TOY], [TOY]):
            check_before_measuring(planted(factory), sizes, CPU)
        assert build_model(planted(factory), TOY)(torch.zeros(2, 8, dtype=torch.int64)).shape == (2, 8, 37)


def test_a_truncated_normal_needs_no_content_and_still_draws_for_real_tensors() -> None:
    facts = facts_of(planted("TruncatedNormals"), TOY)
    assert (facts.why_not_counted, facts.parameters) == (None, facts_of(planted("Healthy"), TOY).parameters)
    drawn = nn.utils.parameters_to_vector(build_model(planted("TruncatedNormals"), TOY).parameters()).detach()
    assert 0.01 < float(drawn.std()) < 0.03
    assert float(drawn.abs().max()) <= 0.06


BESIDE = """
import torch
from torch import nn

SCALE = torch.ones(1)


class Beside(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocab_size, 4), nn.Linear(4, vocab_size)

    def forward(self, tokens):
        return self.head(SCALE * self.embedding(tokens).cumsum(1))


def build(config):
    return Beside(config.vocab_size)
"""


def test_a_model_with_a_tensor_in_its_file_is_measured_with_the_real_one_and_not_counted(tmp_path: Path) -> None:
    """The file is first run on fake tensors, by which that one has no content."""
    (tmp_path / "beside.py").write_text(BESIDE)
    model = UserModel(f"{tmp_path}/beside.py:build")
    check_before_measuring(model, [TOY], CPU)
    assert torch.isfinite(build_model(model, TOY)(torch.zeros(1, 8, dtype=torch.int64))).all()
    case = language_model_case(TOY, model=model.name, attention="own", optimizer="loop")
    counters, reason = counters_or_reason(case)
    assert counters is None
    assert "cannot be run on fake tensors" in str(reason)


def test_a_module_converts_its_weights_without_content_as_it_does_real_ones() -> None:
    facts = facts_of(planted("Converts"), TOY)
    real: Any = build_model(planted("Converts"), TOY)
    assert (facts.why_not_counted, facts.parameters) == (None, 37 * 4 + 37)
    with FakeTensorMode():
        fake: Any = build_model(planted("Converts"), TOY)
    for built in (real, fake):
        assert built.head.weight is built.embedding.weight
        assert {tensor.dtype for tensor in built.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize("name", ["nano_gpt", "cs336_basics", "nanochat", "gpt_fast", "litgpt", "x_transformers"])
def test_stand_ins_for_public_repositories_are_measured_and_predicted(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = UserModel(f"tests.support.stand_ins:{name}")
    check_before_measuring(model, [TOY], CPU)
    parameters = sum(parameter.numel() for parameter in build_model(model, TOY).parameters())
    facts = facts_of(model, TOY)
    assert (facts.why_not_counted, facts.parameters) == (None, parameters)
    case = language_model_case(TOY, phase="full_step", model=model.name, attention="own", optimizer="loop")
    for device in ("cpu", "cuda"):
        counters: Any = counters_of(replace(case, device=device))
        assert counters.model_flops >= 3 * 2 * TOY.vocab_size * TOY.d_model * case.tokens
        assert counters.peak_bytes > 16 * parameters
    assert capsys.readouterr().out == ""


OWN_LOSS = ["NanoGpt", "LossInChunks", "LossFirst", "LossInAnObject"]
if hasattr(nn.functional, "linear_cross_entropy"):
    OWN_LOSS.append("LossOfPytorch")


@pytest.mark.parametrize("name", OWN_LOSS)
def test_a_model_that_computes_its_loss_is_trained_by_it_and_counted(name: str) -> None:
    """Alone, in a tuple of either order, or in an object; only with targets, or of all tokens only with them."""
    model = UserModel(f"tests.support.stand_ins:{name}")
    check_before_measuring(model, [TOY], CPU)
    case = language_model_case(TOY, phase="full_step", model=model.name, attention="own", optimizer="loop")
    assert (case.computes_loss, facts_of(model, TOY).why_not_counted) == (True, None)
    built, tokens, targets = build_model(model, TOY), torch.arange(16).view(2, 8), torch.arange(1, 17).view(2, 8)
    training = OwnLossTraining(built, PRECISIONS["fp32"], CPU)
    training.targets_BT = targets
    loss = training.step(tokens, targets)
    assert loss.shape == ()
    body: Any = build_model(model, TOY)
    body.load_state_dict(built.state_dict())
    training = OwnLossTraining(body, PRECISIONS["fp32"], CPU)
    training.targets_BT = targets
    hidden = body.hidden(tokens) if name != "NanoGpt" else None
    if hidden is not None:
        wanted = nn.functional.cross_entropy(body.lm_head(hidden).flatten(0, 1), targets.flatten())
        assert torch.isclose(training.loss(training.forward(tokens), targets), wanted)
    counters: Any = counters_of(case)
    products = 3 * 2 * case.tokens * (TOY.vocab_size * TOY.d_model + 4 * TOY.d_model**2)
    assert counters.model_flops >= products
    assert counters.executed_flops is not None


def test_what_gives_all_logits_without_targets_is_trained_by_the_suites_loss() -> None:
    for name in ("nanochat", "nano_gpt"):
        assert not facts_of(UserModel(f"tests.support.stand_ins:{name}"), TOY).computes_loss
    # Of one token the last is all.
    assert not facts_of(UserModel("tests.support.stand_ins:NanoGpt"), TOY.at_context(1)).computes_loss


@pytest.mark.parametrize(
    "name, words",
    [
        ("LossOfTheFuture", "is not a causal language model"),
        ("LossOfEach", r"returned \(1, 8\) for tokens and targets; it must return the mean loss, a scalar"),
        ("LossOfNan", "returned a loss that is not finite"),
        ("LossOfHalf", "returned a loss of torch.float16"),
    ],
)
def test_a_loss_that_cannot_be_trained_on_is_refused(name: str, words: str) -> None:
    with pytest.raises(UserCodeError, match=words):
        check_before_measuring(UserModel(f"tests.support.stand_ins:{name}"), [TOY], CPU)


def test_a_factory_that_wants_another_configuration_is_given_the_lines_to_write(tmp_path: Path) -> None:
    """They are tried: written into its file, the model is measured."""
    file = tmp_path / "theirs.py"
    file.write_text(
        "from tests.support.stand_ins import LitConfig as YourConfig, LitGpt\n\n\n"
        "def GPT(config):\n    return LitGpt(YourConfig(config.padded_vocab_size, 8, 8))\n"
    )
    with pytest.raises(UserCodeError, match="ModelConfig has no 'padded_vocab_size'; it has d_model, ") as refusal:
        check_before_measuring(UserModel(f"{file}:GPT"), [TOY], CPU)
    told, _, lines = str(refusal.value).partition("\n\n")
    assert told.endswith(f"Write these lines into {file}, and name --model {file}:build")
    lines = textwrap.dedent(lines).replace(
        "padded_vocab_size=..., vocab_size=", "n_embd=8, block_size=8, padded_vocab_size="
    )
    (tmp_path / "ours.py").write_text(file.read_text() + lines)
    check_before_measuring(UserModel(f"{tmp_path}/ours.py:build"), [TOY], CPU)


def test_a_failure_names_the_line_of_the_users_own_code(tmp_path: Path) -> None:
    """The innermost, also where torch raises further inside."""
    (tmp_path / "theirs.py").write_text(
        "import torch\nfrom torch import nn\n\n\nclass GPT(nn.Module):\n    def __init__(self, config):\n"
        "        super().__init__()\n        self.w = nn.Embedding(config.vocab_size, 4)\n\n"
        "    def forward(self, tokens):\n        return self.w(tokens) @ torch.zeros(3, 5)\n"
    )
    with pytest.raises(UserCodeError, match=rf"cannot be multiplied .*\({tmp_path}/theirs.py:11, in forward\)$"):
        check_before_measuring(UserModel(f"{tmp_path}/theirs.py:GPT"), [TOY], CPU)


def test_what_a_factory_prints_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is the verb's own: JSON of `predict --json`."""
    build_model(planted("talks"), TOY)
    assert capsys.readouterr() == ("", "number of parameters: 1.68M\n")


def test_a_file_that_imports_what_is_not_there_is_told_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("import no_such_library\n")
    with pytest.raises(UserCodeError, match=r"named 'no_such_library'; install it into .*, or add its folder to"):
        build_model(UserModel(f"{tmp_path}/other.py:build"), TOY)


def test_projections_that_begin_as_zeros_hide_neither_context_nor_later_tokens() -> None:
    built: Any = build_model(UserModel("tests.support.stand_ins:Nanochat"), TOY)
    user_models.check_values_of("Nanochat", built, TOY, CPU)
    assert not built.attn.out.weight.any()
    future = build_model(UserModel("tests.support.stand_ins:NanochatOfTheFuture"), TOY)
    with pytest.raises(UserCodeError, match="is not a causal language model"):
        user_models.check_values_of("NanochatOfTheFuture", future, TOY, CPU)


def test_dropout_neither_hides_that_context_is_ignored_nor_passes_for_it() -> None:
    with pytest.raises(UserCodeError, match="Dropping ignores its context"):
        user_models.check_values_of("Dropping", build_model(planted("Dropping"), TOY), TOY, CPU)
    user_models.check_values_of("DroppingOfAll", build_model(planted("DroppingOfAll"), TOY), TOY, CPU)


def test_a_large_model_is_not_run_before_measuring_but_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shape of its output shows without content, at the first and the last size."""
    parameters = facts_of(planted("NotANumber"), TOY).parameters or 0
    monkeypatch.setattr(user_models, "SMALL_PARAMETERS", parameters - 1)
    check_before_measuring(planted("NotANumber"), [TOY], CPU)
    check_before_measuring(planted("WrongShapeAt16"), [TOY], CPU)
    with pytest.raises(UserCodeError, match=r"returned \(1, 16, 36\)"):
        check_before_measuring(planted("WrongShapeAt16"), [TOY, TOY.at_context(16)], CPU)
    monkeypatch.setattr(user_models, "SMALL_PARAMETERS", parameters)
    with pytest.raises(UserCodeError, match="not finite"):
        check_before_measuring(planted("NotANumber"), [TOY], CPU)


def test_parameters_are_counted_once_trainable_ones_apart_and_not_where_memory_ran_out() -> None:
    check_before_measuring(planted("runs_out_of_memory"), [TOY], CPU)
    head = 32 * TOY.vocab_size + TOY.vocab_size
    found = [
        facts_of(model, TOY) for model in (planted("runs_out_of_memory"), planted("Tied"), planted("FrozenEmbedding"))
    ]
    assert [(facts.parameters, facts.trainable_parameters) for facts in found] == [
        (None, None), (TOY.vocab_size * 4, TOY.vocab_size * 4), (32 * TOY.vocab_size + head, head),
    ]  # fmt: skip
    assert [facts.why_not_counted is None for facts in found] == [False, True, True]


def test_the_identity_holds_only_what_the_factory_took() -> None:
    """One that ignores the widths it is asked for has others, which nobody knows."""
    taken, ignored = (language_model_case(model=f"{MODELS}:{name}").identity() for name in ("Healthy", "Averaging"))
    assert [[identity[name] for name in SHAPE] for identity in (taken, ignored)] == [[16, 24, 2, 2], [None] * 4]
    assert ignored["vocab_size"] == TOY.vocab_size
    case = language_model_case(model=f"{MODELS}:Averaging")
    assert (case.work, case.residual_tensor_bytes, case.blocks) == (None, None, 1)
    with pytest.raises(TypeError, match="Averaging computes is counted, not known in closed form"):
        case.forward_flops  # noqa: B018


def test_arguments_reach_the_factory_by_name_and_stand_in_the_identity() -> None:
    wide = planted("of_width", "width=6", "vocab_size=37")
    assert facts_of(wide, TOY).parameters == 37 * 6 + 37 * 6 + 37
    assert wide.in_identity["model_args"] == "vocab_size=37, width=6"
    assert wide.in_identity == planted("of_width", "vocab_size=37", "width=6").in_identity
    assert wide.in_identity["model_digest"] != planted("of_width", "width=7").in_identity["model_digest"]
    assert wide.as_options == f"--model {MODELS}:of_width --model-arg=width=6 --model-arg=vocab_size=37"
    assert wide.in_a_path == f"{MODELS}-of_width-{wide.in_identity['model_digest']}"
    assert [size_name(f"hf:/{path}") for path in ("gpt2/config.json", "a b-c_1.5.json")] == ["gpt2", "a_b_c_1.5"]
    assert planted("Averaging").in_identity == {
        "model": f"{MODELS}:Averaging", "model_args": None, "model_digest": None
    }  # fmt: skip


def test_values_of_arguments_are_numbers_truths_or_text() -> None:
    typed = ("a=3", "b=0.5", "c=true", "d=false", "e=eager", "f=1e-5", "g=")
    assert [argument(text)[1] for text in typed] == [3, 0.5, True, False, "eager", 1e-5, ""]
    with pytest.raises(ValueError, match="write it as name=value"):
        argument("width")


CONFIGURATIONS = {
    "{": "is not JSON",
    "[]": "names no model_type",
    '{"model_type": 3}': "names no model_type",
    '{"model_type": "llama", "auto_map": {"AutoModel": "m.M"}}': "code of its own .auto_map.",
    '{"model_type": "llama", "text_config": {"auto_map": {}}}': "code of its own .auto_map.",
    '{"model_type": "llama", "_attn_implementation": "somebody/kernel"}': "names the attention",
    '{"model_type": "t5", "is_encoder_decoder": true}': "is of an encoder and a decoder .t5.; only models of one",
    '{"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}': "write its text_config into a file",
}


def test_a_configuration_that_is_none_or_names_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    refused = {(path, text): words for text, words in CONFIGURATIONS.items()}
    refused |= {(tmp_path, ""): "is a folder, not a file; name the config", (Path("no.json"), ""): "cannot be read: No"}
    for (place, text), words in refused.items():
        path.write_text(text)
        with pytest.raises(ValueError, match=words):
            check_configuration("--model", f"hf:{place}")


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[UserModel]:
    """A configuration, with a stand-in for transformers, which is installed in few environments."""

    def config(kind: str, **values: Any) -> SimpleNamespace:
        if kind not in ("stub", "two stacks", "both ways"):
            raise ValueError("Unrecognized model identifier")
        sizes = {"hidden_size": 4, "vocab_size": 37, "max_position_embeddings": 16, "num_hidden_layers": 2}
        return SimpleNamespace(**{**sizes, "kind": kind, "is_encoder_decoder": kind == "two stacks", **values})

    def from_config(config: SimpleNamespace, *, trust_remote_code: bool, dtype: torch.dtype) -> nn.Module:
        assert (trust_remote_code, dtype, config.use_cache) == (False, torch.float32, False)
        factory = load(f"{MODELS}:{'Bidirectional' if config.kind == 'both ways' else 'OutputObject'}")
        model: nn.Module = factory(ModelConfig(4, 4, 1, 1, config.vocab_size), config.hidden_size)
        return model

    stub = SimpleNamespace(
        __spec__="as of an installed package",
        logging=SimpleNamespace(set_verbosity_error=lambda: None),
        AutoConfig=SimpleNamespace(for_model=config),
        AutoModelForCausalLM=SimpleNamespace(from_config=from_config),
    )
    monkeypatch.setitem(sys.modules, "transformers", stub)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    values = {"model_type": "stub", "hidden_size": 6, "torch_dtype": "bfloat16", "transformers_version": "5"}
    (tmp_path / "three.json").write_text(json.dumps(values))
    user_models.configuration.cache_clear()
    yield UserModel(f"hf:{tmp_path}/three.json")
    user_models.configuration.cache_clear()


@pytest.mark.parametrize("said, is_refused", [({}, True), ({"is_encoder_decoder": False}, False)])
def test_a_file_that_does_not_say_how_many_stacks_it_has_is_taken_as_its_kind(
    said: dict[str, bool], is_refused: bool, configured: UserModel, tmp_path: Path
) -> None:
    (tmp_path / "three.json").write_text(json.dumps({"model_type": "two stacks", **said}))
    with pytest.raises(UserCodeError, match="is of an encoder and a decoder") if is_refused else nullcontext():
        user_models.configuration(configured.name, ())


def test_a_configuration_gives_shape_and_digest_and_takes_arguments(configured: UserModel, tmp_path: Path) -> None:
    identity = language_model_case(model=configured.name).identity()
    assert (identity["d_model"], identity["d_ff"], identity["model_args"]) == (6, None, None)
    assert facts_of(configured, TOY).parameters == 37 * 6 * 2 + 37
    wider = UserModel(configured.name, ("hidden_size=8",))
    assert facts_of(wider, TOY).parameters == 37 * 8 * 2 + 37
    assert wider.in_identity["model_digest"] != configured.in_identity["model_digest"]
    check_before_measuring(configured, [TOY], CPU)
    text = (tmp_path / "three.json").read_text()
    (tmp_path / "three.json").write_text(text.replace('"5"', '"6"'))
    assert configured.in_identity["model_digest"] == identity["model_digest"]


@pytest.mark.parametrize(
    "kind, code, words", [("both ways", 2, "not a causal language model: logits"), ("stub", 1, "")]
)
def test_predict_refuses_a_configuration_that_sees_later_tokens_however_large(
    kind: str, code: int, words: str, configured: UserModel, tmp_path: Path, verb: Verb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perf_tests_suite.perf_tests.verbs.predict.QUIET_SECONDS", 1e4)  # on a busy machine too
    (tmp_path / "three.json").write_text(json.dumps({"model_type": kind, "vocab_size": 10**9}))
    typed = ("--model", configured.name, "--model-arg=num_hidden_layers=9", "--context=8", "--gpu=T4")
    found, _, said = verb("predict", *typed)
    assert (found, words in said, said.count("\n")) == (code, True, len(words) > 0)


def test_what_a_configuration_lacks_is_refused(configured: UserModel, tmp_path: Path) -> None:
    for typed, words in (
        ("widht=8", "--model-arg widht is not a value of a stub configuration"),
        ("attn_implementation=somebody/kernel", "must be one of eager, sdpa"),
        ("experts_implementation=somebody/kernel", "must be one of batched_mm, eager, grouped_mm"),
    ):
        with pytest.raises(UserCodeError, match=words):
            build_model(UserModel(configured.name, (typed,)), TOY)
    assert configured_shape(configured, 16).context_length == 16
    with pytest.raises(UserCodeError, match=r"--context is 17, and .* takes at most 16 tokens"):
        configured_shape(configured, 17)
    unlimited = UserModel(configured.name, ("max_position_embeddings=-1",))
    assert configured_shape(unlimited, 17).context_length == 17
    for values, words in (
        ({"model_type": "unheard-of"}, "names the architecture 'unheard-of', which transformers does not know"),
        ({"model_type": "stub", "vocab_size": None}, "names no vocab_size; add it to the configuration"),
    ):
        user_models.configuration.cache_clear()
        (tmp_path / "three.json").write_text(json.dumps(values))
        with pytest.raises(UserCodeError, match=words):
            configured_shape(configured, 16)


def test_a_half_installed_transformers_is_named_as_that(
    configured: UserModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "transformers.py").write_text("import no_such_tokenizer\n")
    monkeypatch.delitem(sys.modules, "transformers")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserCodeError, match=r"^transformers, which hf: needs, .*'no_such_tokenizer'; repair it in"):
        configured_shape(configured, 16)


def test_a_model_is_known_by_its_path(configured: UserModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    assert UserModel(f"{tmp_path}/nets/gpt.py:build").in_identity["model"] == "nets/gpt.py:build"
    identity = language_model_case(model=configured.name, size="tiny").identity()
    assert identity["model"] == "hf:three.json"
    typed_elsewhere = replace(SETTINGS, model="hf:./three.json", batch_sizes=(2,))
    monkeypatch.chdir(tmp_path)
    assert is_inside(identity, typed_elsewhere)
    assert not is_inside(identity, replace(typed_elsewhere, model="other:build"))

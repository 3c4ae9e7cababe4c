"""A model of one's own is known by itself, and what cannot be measured is refused in a sentence before measuring."""

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from model.sizes import ModelConfig
from perf_tests.cases.selected import is_inside
from perf_tests.user_code import guard
from perf_tests.user_code import model as hugging_face
from perf_tests.user_code.guard import ChangedDefaultsError, UserCodeError, process_kept, torch_defaults_kept
from perf_tests.user_code.model import (
    UserModel,
    argument,
    check_before_measuring,
    check_values_of,
    configured_shape,
    facts_of,
)
from perf_tests.user_code.named import absolute, check_name, load
from tests.support.example_cases import CPU, SETTINGS, TOY, language_model_case
from tests.support.launch import MODELS

REFUSED = {
    "no_such_factory": "cannot be imported: AttributeError",
    "raises": "builds no model: KeyError: 'hidden_size'",
    "exits": r"builds no model: it called exit\(3\)",
    "never_returns": "builds no model: it did not return within 0.2 s",
    "nothing": "returned a NoneType; it must return an nn.Module",
    "a_class": "returned the class Averaging; it must return an nn.Module",
    "changes_the_default_dtype": "changed torch's default dtype from torch.float32 to torch.float64",
    "changes_the_default_device": "changed torch's default device from cpu to meta",
    "half_parameters": "has parameters of torch.float16",
    "Halved": "returned logits of torch.float16",
    "WrongShape": r"returned \(1, 8, 36\) for tokens of shape \(1, 8\); it must return logits of shape \(1, 8, 37\)",
    "ChangesItsTokens": "changed its tokens in place",
    "NotANumber": "returned logits that are not finite",
    "IgnoresContext": "ignores its context",
    "Hoarding": "keeps a tensor from one build to the next",
    "Unrunnable": r"fails on tokens of shape \(1, 8\): TypeError: an attention mask is missing",
}


def own(factory: str, *arguments: str) -> UserModel:
    return UserModel(f"{MODELS}:{factory}", arguments)


@pytest.mark.parametrize("factory", REFUSED)
def test_what_cannot_be_measured_is_refused_in_one_sentence(factory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if factory == "never_returns":  # no other, because a loaded machine may take as long to build one
        monkeypatch.setattr("perf_tests.user_code.model.LONGEST_SECONDS", 0.2)
    with pytest.raises(UserCodeError, match=REFUSED[factory]) as refusal:
        check_before_measuring(own(factory), [TOY], CPU)
    assert str(refusal.value).startswith(f"--model {MODELS}:{factory} ")
    assert ". " not in str(refusal.value)
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_default_device() == CPU


@pytest.mark.parametrize("factory", ["Averaging", "Wrapped", "OutputObject", "Tied", "ReadsAValue", "prints"])
def test_logits_may_be_bare_or_in_a_tuple_or_an_object(factory: str) -> None:
    check_before_measuring(own(factory), [TOY], CPU)
    logits_BTV = own(factory).build(TOY)(torch.zeros(2, 8, dtype=torch.int64))
    assert logits_BTV.shape == (2, 8, 37)


def test_dropout_neither_hides_that_context_is_ignored_nor_passes_for_it() -> None:
    planted = "tests.support.planted_parts"
    with pytest.raises(UserCodeError, match="Dropping ignores its context"):
        check_values_of("Dropping", UserModel(f"{planted}:Dropping").build(TOY), TOY, CPU)
    check_values_of("DroppingOfAll", UserModel(f"{planted}:DroppingOfAll").build(TOY), TOY, CPU)


def test_running_out_of_memory_is_no_reason_to_refuse_and_shared_parameters_count_once() -> None:
    check_before_measuring(own("runs_out_of_memory"), [TOY], CPU)
    parameters = [facts_of(own(factory), TOY).parameters for factory in ("runs_out_of_memory", "Tied")]
    assert parameters == [None, TOY.vocab_size * 4]


def test_the_identity_holds_only_what_the_factory_took() -> None:
    """One that ignores the widths it is asked for has others, which nobody knows."""
    widths = ("d_model", "d_ff", "num_layers", "num_heads")
    taken, ignored = (language_model_case(model=f"{MODELS}:{name}").identity() for name in ("Healthy", "Averaging"))
    assert [[identity[name] for name in widths] for identity in (taken, ignored)] == [[16, 24, 2, 2], [None] * 4]
    assert ignored["vocab_size"] == TOY.vocab_size


def test_arguments_reach_the_factory_by_name_and_stand_in_the_identity() -> None:
    wide = own("of_width", "width=6", "vocab_size=37")
    assert facts_of(wide, TOY).parameters == 37 * 6 + 37 * 6 + 37
    identity = language_model_case(model=wide.name, model_arguments=wide.arguments).identity()
    assert identity["model_args"] == "vocab_size=37, width=6"
    assert wide.in_identity == own("of_width", "vocab_size=37", "width=6").in_identity
    assert wide.in_identity["model_digest"] != own("of_width", "width=7").in_identity["model_digest"]
    assert own("Averaging").in_identity == {
        "model": f"{MODELS}:Averaging", "model_args": None, "model_digest": None
    }  # fmt: skip


def test_values_of_arguments_are_numbers_truths_or_text() -> None:
    typed = ("a=3", "b=0.5", "c=true", "d=false", "e=eager", "f=1e-5", "g=")
    assert [argument(text)[1] for text in typed] == [3, 0.5, True, False, "eager", 1e-5, ""]
    with pytest.raises(ValueError, match="write it as name=value"):
        argument("width")


def test_a_file_is_its_own_module_and_may_import_its_neighbours(tmp_path: Path) -> None:
    """Also one named as the suite's `model`."""
    (tmp_path / "own_neighbour_of_a_model.py").write_text("WIDTH = 5\n")
    text = "from own_neighbour_of_a_model import WIDTH\ndef build(config): return config, WIDTH\n"
    (tmp_path / "model.py").write_text(text)
    name = f"{tmp_path}/model.py:build"
    check_name("--model", name)
    assert load(name)(TOY) == (TOY, 5)
    assert load(f"{MODELS}:Healthy")(TOY) is not None


def test_a_name_is_made_absolute_where_it_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [absolute(text) for text in ("nets.py:build", "hf:a/config.json", "package.nets:build")] == [
        f"{tmp_path}/nets.py:build", f"hf:{tmp_path}/a/config.json", "package.nets:build",
    ]  # fmt: skip


def test_a_name_that_leads_nowhere_is_refused_before_anything_runs(tmp_path: Path) -> None:
    for text, words in (
        (f"{tmp_path}:build", "is a folder, not a file; name the file as path/file.py:build"),
        ("nowhere.py:build", "there is no file nowhere.py"),
        ("nowhere:build", "there is no module 'nowhere' on the path; add its folder to PYTHONPATH"),
        ("no.where:build", "'no.where:build'"),
        ("torch", "names nothing to load"),
        ("torch:", "names nothing to load"),
    ):
        with pytest.raises(ValueError, match=words):
            check_name("--model", text)


CONFIGURATIONS = {
    "no JSON": ("{", "is no JSON"),
    "a list": ("[]", "names no model_type"),
    "code of its own": ('{"model_type": "llama", "auto_map": {"AutoModel": "m.M"}}', "code of its own .auto_map."),
    "code inside": ('{"model_type": "llama", "text_config": {"auto_map": {}}}', "code of its own .auto_map."),
    "a kernel": ('{"model_type": "llama", "_attn_implementation": "somebody/kernel"}', "names the attention"),
}


def test_a_configuration_that_is_none_or_names_code_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text, words in CONFIGURATIONS.values():
        path.write_text(text)
        with pytest.raises(ValueError, match=words):
            hugging_face.check_configuration("--model", f"hf:{path}")
    for place, words in (
        (tmp_path, "is a folder, not a file; name the config"),
        ("no.json", "cannot be read: No such"),
    ):
        with pytest.raises(ValueError, match=words):
            hugging_face.check_configuration("--model", f"hf:{place}")


class StubConfig:
    def __init__(self, **values: object) -> None:
        self.hidden_size, self.vocab_size, self.max_position_embeddings = 4, 37, 16
        vars(self).update(values)


class StubTransformers:
    """What the suite calls of transformers, which is installed in few environments."""

    class logging:  # noqa: N801
        set_verbosity_error: Callable[[], None] = staticmethod(lambda: None)

    class AutoConfig:
        @staticmethod
        def for_model(kind: str, **values: object) -> StubConfig:
            if kind != "stub":
                raise ValueError("Unrecognized model identifier")
            return StubConfig(**values)

    class AutoModelForCausalLM:
        @staticmethod
        def from_config(config: StubConfig, *, trust_remote_code: bool, dtype: torch.dtype) -> nn.Module:
            assert not trust_remote_code
            assert dtype == torch.float32
            planted = load(f"{MODELS}:OutputObject")
            model: nn.Module = planted(ModelConfig(4, 4, 1, 1, config.vocab_size), config.hidden_size)
            return model


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> UserModel:
    monkeypatch.setattr(hugging_face, "_transformers", lambda: StubTransformers)
    hugging_face.configuration.cache_clear()
    (tmp_path / "three.json").write_text(
        json.dumps({"model_type": "stub", "hidden_size": 6, "torch_dtype": "bfloat16"})
    )
    return UserModel(f"hf:{tmp_path}/three.json")


def test_a_configuration_gives_shape_and_digest_and_takes_arguments(configured: UserModel) -> None:
    case = language_model_case(model=configured.name)
    identity = case.identity()
    assert (identity["d_model"], identity["d_ff"], identity["model_args"]) == (6, None, None)
    assert facts_of(configured, TOY).parameters == 37 * 6 * 2 + 37
    wider = UserModel(configured.name, ("hidden_size=8",))
    assert facts_of(wider, TOY).parameters == 37 * 8 * 2 + 37
    assert wider.in_identity["model_digest"] != configured.in_identity["model_digest"]
    check_before_measuring(configured, [TOY], CPU)


def test_what_a_configuration_lacks_or_transformers_does_not_know_is_refused(
    configured: UserModel, tmp_path: Path
) -> None:
    for argument_, words in (
        ("widht=8", "--model-arg widht is no value of a stub configuration"),
        ("attn_implementation=somebody/kernel", "must be one of eager, sdpa"),
    ):
        with pytest.raises(UserCodeError, match=words):
            UserModel(configured.name, (argument_,)).build(TOY)
    (tmp_path / "three.json").write_text('{"model_type": "unheard-of"}')
    with pytest.raises(UserCodeError, match="names the architecture 'unheard-of', which transformers does not know"):
        configured.build(TOY)


def test_the_time_limit_ends_with_the_call() -> None:
    with guard.guarded("--model m:f builds no model", 60):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_model_is_known_by_its_path_in_the_repository_wherever_it_was_typed(
    configured: UserModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    assert UserModel(f"{tmp_path}/nets/gpt.py:build").in_identity["model"] == "nets/gpt.py:build"
    identity = language_model_case(model=configured.name, size="tiny").identity()
    assert identity["model"] == "hf:three.json"
    typed_elsewhere = replace(SETTINGS, model="hf:./three.json", batch_sizes=(2,))
    monkeypatch.chdir(tmp_path)
    assert is_inside(identity, typed_elsewhere)
    assert not is_inside(identity, replace(typed_elsewhere, model="other:build"))


def test_the_longest_context_of_a_configuration_is_allowed_and_no_longer_one(configured: UserModel) -> None:
    assert configured_shape(configured, 16).context_length == 16
    with pytest.raises(UserCodeError, match=r"--context is 17, and .* takes at most 16 tokens"):
        configured_shape(configured, 17)


def test_what_a_case_changed_is_put_back_also_where_it_failed() -> None:
    def change() -> None:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        torch.set_num_threads(threads + 1)

    def change_and_fail() -> None:
        change()
        torch.ones(1).item()

    threads = torch.get_num_threads()
    with (
        pytest.raises(ChangedDefaultsError, match=r"dtype .* and .* device .* and .* threads from"),
        torch_defaults_kept(),
    ):
        change()
    with pytest.raises(RuntimeError, match="meta"), torch_defaults_kept():
        change_and_fail()
    assert (torch.get_default_dtype(), torch.get_num_threads()) == (torch.float32, threads)
    assert torch.ones(1).device.type == "cpu"


def test_a_process_forked_by_a_case_ends_as_it_says() -> None:
    with process_kept():
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_handlers_that_a_case_installs_for_the_signals_that_end_a_run_are_put_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with process_kept():
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
    assert [signal.getsignal(number) for number in numbers] == before

"""Everything that the suite uses of torch's private parts, each with the reason why no public way will do.

All of it exists in torch 2.9.0 to 2.14.1 under these names. A test holds all other files to public names, so only this
one needs checking against a new release."""

import importlib
import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

# Fake tensors: `torch.empty(device="meta")` is public, but forgets the device that it represents.

# What sees each operation as the dispatcher runs it, the backward pass included; torch.overrides.TorchFunctionMode,
# the public one, sees Python's calls alone.

# It logs a traceback of its own for what it cannot run, which is raised and told in one sentence anyway.
logging.getLogger(FakeTensor.__module__).addFilter(lambda record: False)

__all__ = ["DataDependentOutputException", "FakeTensorMode", "TorchDispatchMode"]

_is_fake_in_cpp: Callable[[torch.Tensor], bool] = getattr(torch._C, "_is_fake_tensor", lambda tensor: False)


def is_fake(value: object) -> bool:
    """Whether it is a tensor without content: of Python's class, or one that torch, since 2.14, makes in C++.

    The latter is a plain Tensor by its type, and nothing public tells it from a real one.
    """
    return isinstance(value, FakeTensor) or (isinstance(value, torch.Tensor) and _is_fake_in_cpp(value))


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Run on tensors without content, and let real steps import anew what first was here and holds such tensors.

    A kernel's file that makes a workspace on a device which this machine lacks fails there, as in any program.
    """
    imported_before = set(sys.modules)
    try:
        with FakeTensorMode():
            yield
    finally:
        _forget_modules_with_fakes(imported_before)


def _forget_modules_with_fakes(imported_before: set[str]) -> None:
    """Take out modules that hold such tensors, or one that does."""
    new = {
        name: getattr(module, "__dict__", {})
        for name, module in list(sys.modules.items())
        if name not in imported_before
    }
    gone = dict[int, ModuleType]()
    while found := [
        name
        for name, held in new.items()
        if any(
            (issubclass(type(each), torch.Tensor) and is_fake(each)) or id(each) in gone for each in list(held.values())
        )
    ]:
        for name in found:
            del new[name]
            module = sys.modules.pop(name)
            gone[id(module)] = module
            package, _, last = name.rpartition(".")
            if package in sys.modules:
                vars(sys.modules[package]).pop(last, None)


MOST_FAKE_SHAPES = 10_000
"""Some 5 MB of them."""


def bound_fake_shapes() -> None:
    """Clear what torch remembers of operations and shapes without content once that is much: nothing else bounds it.

    Not earlier, because cases share shapes and counting without it takes nearly twice as long.
    """
    if FakeTensorMode.cache_info().size > MOST_FAKE_SHAPES:
        FakeTensorMode.cache_clear()


def let_models_be_built_of_fakes() -> None:
    """Let `nn.init.trunc_normal_` and conversions of a module work on fake tensors, for good.

    Since torch 2.13 the former draws until no value lies outside of its bounds, and reads that off the tensor, which
    has none. Modules import the public function by name, so that only the private one below it can be replaced.
    `module.to(dtype)` swaps fake tensors, which fails for any that is referred to weakly, as parameters are;
    their data are replaced here, as in a real tensor of the same device.
    """
    draw, convert = torch.nn.init._no_grad_trunc_normal_, vars(torch.nn.Module)["_apply"]
    if getattr(draw, "spares_fakes", False):
        return

    def draw_real(tensor: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
        return tensor if is_fake(tensor) else draw(tensor, *arguments, **named)

    def convert_fakes(module: Any, converted: Callable[[Any], Any], recurse: bool = True) -> Any:
        parameters = module._parameters
        if not any(map(is_fake, parameters.values())):
            return convert(module, converted, recurse)
        for child in module.children() if recurse else ():
            child._apply(converted)
        for name, parameter in parameters.items():
            if parameter is not None:
                with torch.no_grad():
                    now = converted(parameter)
                if now.device == parameter.device:
                    parameter.data = now
                else:
                    parameters[name] = torch.nn.Parameter(now, parameter.requires_grad)
        module._buffers.update({name: b if b is None else converted(b) for name, b in module._buffers.items()})
        return module

    vars(draw_real)["spares_fakes"] = True
    vars(torch.nn.init)["_no_grad_trunc_normal_"] = draw_real
    torch.nn.Module._apply = convert_fakes  # type: ignore[method-assign]


def modes_left_on() -> int:
    """How many modes of torch are on here, of functions and of dispatch; nothing public counts them.

    A default device is one too and does not count, because defaults that code leaves behind are refused by name.
    """
    functions = (torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack()))
    of_functions = sum(not isinstance(one, torch.utils._device.DeviceContext) for one in functions)
    return of_functions + int(torch._C._len_torch_dispatch_stack())


def profiler_is_active() -> bool:
    """Whether a profiler of PyTorch records: one started inside another silently takes its events."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]


def compiler_counters() -> Mapping[str, Counter[str]] | None:
    """The counters that PyTorch's guide to compile times reads; None while torch.compile is not loaded.

    Loading it would take longer than many cases.
    """
    return getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)


def compiler_stops() -> tuple[list[Any], list[Any]]:
    """Why graphs ended, each with its stack, since the compiler was reset; and a record of each frame it has tried.

    A record says what failed, and which guard made a frame be compiled again. `torch._dynamo.explain`, the public way,
    compiles everything anew by a backend of its own, and knows neither guards nor frames that were given up.
    """
    utils = importlib.import_module("torch._dynamo.utils")
    return [*utils.graph_break_reasons], utils.get_compilation_metrics()


def first_stop(run: Callable[[], object]) -> tuple[str, Any] | None:
    """The reason and the user's stack of the first stop of what `run` compiles; None where it compiles, or else fails.

    Torch before 2.11 has no record of a frame that it gives up for a stop in a loop, but its log; the public
    `fullgraph=True` is a word of the program's own call.
    """
    dynamo = importlib.import_module("torch._dynamo")
    try:
        with dynamo.error_on_graph_break(True):
            run()
    except Exception as error:  # whichever of torch's own, of which 2.9 and 2.13 have others
        stack = getattr(error, "real_stack", None)
        return (str(error), stack) if stack else None
    return None


@contextmanager
def no_code_generation() -> Iterator[None]:
    """Return a context in which Inductor runs new graphs as they are, beside those that it has compiled.

    The public `force_backend` would forget those, of which a recompile names the guard.
    """
    inductor: Any = importlib.import_module("torch._inductor.compile_fx")
    before, inductor.compile_fx = inductor.compile_fx, lambda graph, *_, **__: graph.forward
    try:
        yield
    finally:
        inductor.compile_fx = before


def forget_compiler_records() -> None:
    """Begin the records of frames anew, of which torch otherwise keeps the last 64."""
    utils = importlib.import_module("torch._dynamo.utils")
    utils.set_compilation_metrics_limit(MOST_FRAMES)
    utils.clear_compilation_metrics()


MOST_FRAMES = 10_000


def generated_kernels() -> int:
    """Count the kernels that Inductor has generated, or found in its cache, in this process; nothing public has it."""
    return int(getattr(sys.modules.get("torch._inductor.metrics"), "generated_kernel_count", 0))


def cuda_graphs_may_be_recorded() -> bool:
    """Whether torch.compile's manager of CUDA graphs is loaded; without it no graph exists.

    The public torch.compiler.cudagraph_mark_step_begin would load it, which takes longer than many cases.
    """
    return "torch._inductor.cudagraph_trees" in sys.modules


def load_compiler() -> None:
    """Import what torch.compile and AdamW import at first use; no public call does only that."""
    importlib.import_module("torch._dynamo")


def load_code_generator() -> None:
    """Import what torch.compile needs to generate code at its first call."""
    load_compiler()
    importlib.import_module("torch._inductor.compile_fx")


def autograd_file() -> str:
    """The file whose frame surrounds each backward pass: its one function that calls the C++ engine is private."""
    return torch.autograd.graph.__file__


def forward_number() -> int:
    """The number of autograd's newest node, by which a backward pass is joined to the forward line that made it.

    The profiler's public events have these numbers too, but only after the run.
    """
    return int(torch.autograd._get_sequence_nr()) - 1  # type: ignore[attr-defined]


def backward_number() -> int | None:
    """The number of the node whose backward runs now; None outside of one, and where it only stores a gradient."""
    node = torch._C._current_autograd_node()
    number = None if node is None else int(node._sequence_nr())
    return None if number is None or number >= 2**63 else number


def code_of_module_calls() -> CodeType:
    """The code of the frame in which each module's forward runs, whose `self` is the module.

    Public hooks on a module run beside its call and not around it.
    """
    return torch.nn.Module._call_impl.__code__


def wrappers_of_calls() -> tuple[str, ...]:
    """Path prefixes of the frames that torch wraps around calls, those of optimizers for example."""
    return tuple(str(Path(torch.__file__).parent / name) for name in ("_dynamo", "_compile.py"))


@contextmanager
def cuda_memory_history(most_entries: int) -> Iterator[None]:
    """Record the caching allocator's latest `most_entries` events with their Python stacks.

    The one documented way, despite its underscore ("Understanding CUDA Memory Usage", PyTorch).
    """
    torch.cuda.memory._record_memory_history(enabled="all", stacks="python", max_entries=most_entries)
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def cuda_memory_snapshot() -> dict[str, Any]:
    """The state now, inside `cuda_memory_history`; the same page documents it."""
    return dict(torch.cuda.memory._snapshot())


def spin_cuda(cycles: int) -> None:
    """Occupy the current stream with a kernel that waits for so many cycles; no public kernel takes a known time."""
    torch.cuda._sleep(cycles)


def clear_cublas_workspaces() -> None:
    """Give cuBLAS's workspaces back to the caching allocator, where each would count in the next case's peak.

    Torch's own way between recordings of CUDA graphs (torch/_inductor/cudagraph_trees.py); no public call frees them.
    Builds without CUDA have neither workspaces nor the function.
    """
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()


def operator(name: str) -> Any:
    """An operator by its name in dispatch modes and traces, for example `_to_copy`.

    Autocast's casts, operations on lists and the kernels of fused attention have no public functions.
    """
    return getattr(torch.ops.aten, name)


def runtime_estimator() -> Any:
    """Return torch's own estimator of times, documented but in a private module; claims compare ours with it."""
    return importlib.import_module("torch.distributed._tools.runtime_estimator").RuntimeEstimator


def chunked_cross_entropy() -> Any:
    """The operator of `torch.nn.functional.linear_cross_entropy` in chunks; None before torch 2.13.

    It has no public name, and is there only once its module is imported, which the first call does.
    """
    try:
        importlib.import_module("torch.nn.modules.linear_cross_entropy")
    except ImportError:
        return None
    return getattr(torch.ops.torch_nn, "_linear_cross_entropy_batch_chunked", None)

"""What `model/` names, read from its source without importing torch: precisions, attention, optimizers, checkpoints."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MODEL = Path(__file__).parents[2] / "model"


@dataclass(frozen=True)
class PrecisionNames:
    """A precision of `model.precision`, its dtypes by name."""

    autocast: str | None
    tensors: str
    is_tf32: bool
    scales_loss: bool


@cache
def _assigned(file: str, name: str) -> ast.expr | None:
    """The expression that a file of `model/` assigns to a name; None where it assigns none."""
    for statement in ast.parse((MODEL / file).read_text(encoding="utf-8")).body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return getattr(statement, "value", None)
    return None


def _calls(file: str, name: str) -> dict[str, ast.Call]:
    """The calls that a table of this name holds, by their keys."""
    table = _assigned(file, name)
    assert isinstance(table, ast.Dict), f"model/{file} has no table {name}"
    pairs = zip(table.keys, table.values, strict=True)
    return {ast.literal_eval(key): call for key, call in pairs if key is not None and isinstance(call, ast.Call)}


@cache
def precision_names() -> dict[str, PrecisionNames]:
    """Every precision, in the order of the table."""
    found = {}
    for name, call in _calls("precision.py", "PRECISIONS").items():
        given = {word.arg: word.value for word in call.keywords}
        autocast, tensors = (
            one.attr if isinstance(one := given.get(field), ast.Attribute) else None
            for field in ("autocast_dtype", "tensor_dtype")
        )
        typed = {field: ast.literal_eval(one) for field, one in given.items() if isinstance(one, ast.Constant)}
        is_tf32 = typed.get("float32_matmul_precision", "highest") != "highest"
        found[name] = PrecisionNames(autocast, tensors or "float32", is_tf32, bool(typed.get("scales_loss")))
    return found


@cache
def attention_names() -> dict[str, bool]:
    """Every attention, and whether it is compiled."""
    found = {}
    for name, call in _calls("attention.py", "ATTENTION").items():
        given = [*call.args[3:], *(word.value for word in call.keywords if word.arg == "is_compiled")]
        found[name] = bool(given) and bool(ast.literal_eval(given[0]))
    return found


@cache
def words(file: str, name: str) -> tuple[str, ...]:
    """A tuple of words in a file of `model/`; empty where an earlier revision has none."""
    found = _assigned(file, name)
    return () if found is None else tuple(ast.literal_eval(found))


def tensors_and_autocast(precision: str) -> tuple[str, str | None]:
    """The dtype of given tensors, and what autocast makes of them."""
    known = precision_names()[precision]
    return known.tensors, known.autocast


def uses_tf32(precision: str) -> bool:
    return precision_names()[precision].is_tf32


def scales_loss(precision: str) -> bool:
    return precision_names()[precision].scales_loss


# Rules of `model/` that are of words alone.


def blocks_per_checkpoint(checkpoint: str) -> int:
    """Return how many blocks share one, 0 where no whole block is in one. Raises ValueError."""
    if checkpoint in (known := {"none": 0, "attention": 0, "block": 1}):
        return known[checkpoint]
    if checkpoint.isdecimal() and int(checkpoint) >= 1:
        return int(checkpoint)
    raise ValueError(f"checkpoint is {checkpoint!r}; it must be none, attention, block or a number of blocks.")


def optimizer_that_runs(optimizer: str, device: str) -> str:
    """`optimizer`, `default` being what AdamW does on a device of this type."""
    if optimizer != "default":
        return optimizer
    return "foreach" if device == "cuda" else "loop"

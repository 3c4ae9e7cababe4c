"""The conditions of a record's figures, in words."""

from collections.abc import Iterable

from perf_tests.identity import optimizer_in_words
from perf_tests.records.record import Json
from perf_tests.records.words import how_many
from perf_tests.views.tables.cells import Cell, distinct, finite, inside


def machine_name(record: Json) -> str:
    """The GPU, else the CPU with its count of cores, as the machine names them."""
    machine = record["machine_info"]
    gpu = (machine.get("torch") or {}).get("gpu")
    if gpu:
        return str(gpu.get("name", gpu) if isinstance(gpu, dict) else gpu)
    cpu = machine.get("cpu") or {}
    count = finite(cpu.get("count"))
    cores = "" if count is None else f", {how_many(round(count), 'core')}"
    return f"{cpu.get('brand_raw') or machine.get('machine') or 'unknown CPU'}{cores}"


def machine_line(record: Json) -> str:
    facts = record["machine_info"].get("torch") or {}
    known = {
        "torch {}": facts.get("torch"),
        "driver {}": inside(facts, "gpu").get("driver"),
        "{} threads": facts.get("threads"),
        "deterministic algorithms": facts.get("deterministic_algorithms") is True,
    }
    parts = [words.format(value) for words, value in known.items() if value]
    environment = [f"{name}={value}" for name, value in sorted(inside(facts, "environment").items())]
    return ", ".join([machine_name(record), *parts, *environment])


def commit_of(record: Json) -> str:
    """The abbreviated revision, marked where the working tree had changes."""
    commit = record.get("commit_info")
    if not isinstance(commit, dict) or not commit.get("id"):
        return ""
    return str(commit["id"])[:12] + (" with changes" if commit.get("dirty") else "")


def date_of(record: Json) -> str:
    return str(record.get("datetime") or "")[:16].replace("T", " ")


def rounds_line(cells: list[Cell]) -> str:
    """Batch, warm-up and measured rounds, TF32 state: each value that occurs among these cells."""
    timed = [cell for cell in cells if cell.is_timed]
    found: dict[str, Iterable[str]] = {
        "batch {}": (cell.label("batch_size") for cell in cells),
        "{} measured rounds": (str(len(cell.rounds)) for cell in timed),
        "{} warm-up rounds": (_warmups(cell) for cell in timed),
        "{}": (optimizer_in_words(name) for cell in timed if (name := cell.label("optimizer"))),
        "float32 products {}": (str(cell.info.get("float32_matmul_precision") or "") for cell in timed),
        "SDPA backend {}": (str(cell.info.get("sdpa_backend") or "") for cell in timed),
    }
    known = {words: [value for value in distinct(values) if value] for words, values in found.items()}
    return ", ".join(words.format(" and ".join(values)) for words, values in known.items() if values)


def _warmups(cell: Cell) -> str:
    """As many as asked for; a GPU may have needed more to reach its clock rates."""
    asked, ran = cell.number("warmup_rounds"), cell.number("warmup_rounds_run")
    if asked is None:
        return ""
    return f"{'at least ' if ran is not None and ran > asked else ''}{asked:.0f}"

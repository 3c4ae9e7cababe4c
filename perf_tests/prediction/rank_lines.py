"""One rank's share of a step, as text for a terminal and as JSON: pure functions of the data."""

from collections import Counter

from perf_tests.prediction.lines import case_json, gb, machine_json, room_line, step_name
from perf_tests.prediction.ranks import RankPrediction
from perf_tests.records.record import Json
from perf_tests.views.screens.lines import DASH, duration_range, table


def rank_lines(prediction: RankPrediction) -> list[str]:
    """Verdict, memory, messages and times of one rank."""
    sharing, machine = prediction.sharing, prediction.machine
    held = sorted(prediction.bytes_by_category.items(), key=lambda item: -item[1])
    fewest = prediction.smallest_world
    return [
        f"{step_name(prediction.alone)} on each of {sharing.world} ranks, {sharing.parallel}",
        f"{prediction.verdict} on {machine.name}: a rank's peak is {gb(prediction.peak_bytes)}",
        room_line(machine), "",
        *table(("a rank's peak", "GB"), [(name, f"{size / 1e9:.2f}") for name, size in held if size >= 1e6]), "",
        f"a rank sends {gb(prediction.sent_bytes)} a step: {_messages(prediction)}",
        *_times(prediction), "",
        f"fewest ranks that fit: {fewest}" if fewest else "no number of ranks makes it fit",
        f"assumes {gb(prediction.alone.peak_bytes)} for the step on one device; no several GPUs have confirmed it",
    ]  # fmt: skip


def _messages(prediction: RankPrediction) -> str:
    counts = Counter(message.kind for message in prediction.messages)
    return ", ".join(f"{count} x {kind}" for kind, count in counts.items())


def _times(prediction: RankPrediction) -> list[str]:
    if prediction.exposed_seconds is None or prediction.seconds is None:
        return ["no time: give what a rank can send with --interconnect 450GB/s"]
    rows = [
        ("step on one device", _range(prediction.alone.time.low_seconds, prediction.alone.time.high_seconds)),
        ("exposed communication", _range(*prediction.exposed_seconds)),
        ("step", _range(*prediction.seconds)),
    ]
    return ["", *table(("time", "range"), rows), "exposed: with all overlap that the variant has, to none of it"]


def _range(low_seconds: float, high_seconds: float) -> str:
    return duration_range(low_seconds, high_seconds) if high_seconds else DASH


def rank_json(prediction: RankPrediction) -> Json:
    sharing, exposed, seconds = prediction.sharing, prediction.exposed_seconds, prediction.seconds
    return {
        **machine_json(prediction.machine),
        "parallel": sharing.parallel,
        "world": sharing.world,
        "bucket_mb": sharing.bucket_mb,
        "reshard": not sharing.keeps_gathered,
        "interconnect_bytes_per_second": prediction.bytes_per_second,
        "verdict": prediction.verdict,
        "fits": prediction.verdict == "fits",
        "peak_bytes": prediction.peak_bytes,
        "peak_part": prediction.peak_part,
        "bytes_by_category": prediction.bytes_by_category,
        "sent_bytes": prediction.sent_bytes,
        "messages": [vars(message) for message in prediction.messages],
        "exposed_seconds": None if exposed is None else list(exposed),
        "range_seconds": None if seconds is None else list(seconds),
        "smallest_world_that_fits": prediction.smallest_world,
        "alone": case_json(prediction.alone),
    }

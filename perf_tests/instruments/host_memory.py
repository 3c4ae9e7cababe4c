"""The memory of the host: how much is free, and a cap that makes running out an error instead of a kill."""

import resource
from pathlib import Path


def available_bytes() -> int:
    """What this process could still take: the free memory of the machine or its control group, whichever is less."""
    free = _meminfo_bytes("MemAvailable")
    limit = _control_group_room_bytes()
    return free if limit is None else min(free, limit)


def total_bytes() -> int:
    return _meminfo_bytes("MemTotal")


def cap_address_space(budget_bytes: int) -> None:
    """Let this process grow by at most `budget_bytes`; a larger allocation raises instead of getting it killed."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + budget_bytes
    if hard_limit != resource.RLIM_INFINITY:
        limit = min(limit, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))


def uncap_address_space() -> None:
    """Let this process grow again as far as the system lets it."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard_limit, hard_limit))


def proc_values(file: str, name: str) -> list[str]:
    """The value of each line `name: value` in a file of /proc; empty where there is none."""
    try:
        lines = Path("/proc", file).read_text().splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [value.strip() for found, _, value in pairs if found.strip() == name]


def _meminfo_bytes(name: str) -> int:
    for value in proc_values("meminfo", name):
        return int(value.split()[0]) * 1024
    raise OSError(f"/proc/meminfo has no {name}; set --memory-budget")


def control_group_limit_bytes() -> int | None:
    """Of its memory; None where nothing limits it."""
    found = _control_group_bytes()
    return None if found is None else found[0]


def _control_group_room_bytes() -> int | None:
    found = _control_group_bytes()
    return None if found is None else found[0] - found[1]


def _control_group_bytes() -> tuple[int, int] | None:
    """The control group's limit and what is used of it (version 2, then 1); None where there is no limit."""
    for limit_name, used_name in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit = Path("/sys/fs/cgroup", limit_name).read_text().strip()
            used = Path("/sys/fs/cgroup", used_name).read_text().strip()
        except OSError:
            continue
        if limit.isdecimal():
            return int(limit), int(used)
    return None

"""How busy other processes keep the processors, whatever this one does."""

import os
import time
from pathlib import Path


class OtherProcesses:
    """Their use of the processors from here on."""

    def __init__(self) -> None:
        self._start, self._busy_seconds = time.perf_counter(), _busy_seconds()

    def cores(self) -> float:
        """On average since then; the load of the last minute where the kernel counts no time."""
        now = _busy_seconds()
        if now is None or self._busy_seconds is None:
            return os.getloadavg()[0]
        return (now - self._busy_seconds) / max(time.perf_counter() - self._start, 0.01)


def _busy_seconds() -> float | None:
    """Of all processors since the start of the machine, without this process; None where /proc does not say.

    `man proc_stat`: user, nice, system, idle, iowait, irq, softirq, steal; what follows is contained in user and nice.
    """
    try:
        line = Path("/proc/stat").read_text().partition("\n")[0]
        user, nice, system, _, _, irq, softirq, steal = map(int, line.split()[1:9])
    except (OSError, ValueError):
        return None
    ours = os.times()
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return busy - ours.user - ours.system

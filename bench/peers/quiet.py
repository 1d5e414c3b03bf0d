"""Whether the machine did anything else while something was measured; if so it is measured once more.

Seen from the kernel: what all processors were busy, less what this process and all below it took.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from bench.peers.processes import cpu_seconds

T = TypeVar("T")

DISTURBED = 0.05  # of the machine that others took
TRIES = 2
PATIENCE_SECONDS = 60.0  # for others to become quiet, and for what is measured again, in all
LOOK_SECONDS = 0.5


@dataclass
class Quiet:
    """Runs what is to be measured, and notes the share of the machine that others had in each that counts."""

    shares: list[float] = field(default_factory=list)
    patience: float = PATIENCE_SECONDS

    def measured(self, work: Callable[[], T]) -> T:
        """What the work returns; of several tries that of the one that was disturbed least."""
        tries: list[tuple[float, T]] = []
        for _ in range(TRIES):
            self._wait()
            watch, began = _Watch(), time.monotonic()
            result = work()
            tries.append((watch.share(), result))
            if tries[-1][0] <= DISTURBED or self.patience <= 0:
                break
            self.patience -= time.monotonic() - began
        share, result = min(tries, key=lambda one: one[0])
        self.shares.append(share)
        return result

    def _wait(self) -> None:
        while self.patience > 0:
            watch = _Watch()
            time.sleep(LOOK_SECONDS)
            if watch.share() <= DISTURBED:
                return
            self.patience -= LOOK_SECONDS


class _Watch:
    """The share of the machine that others have had since it was made."""

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.monotonic(), _busy_seconds(), cpu_seconds(os.getpid())

    def share(self) -> float:
        others = (_busy_seconds() - self._busy) - (cpu_seconds(os.getpid()) - self._own)
        return max(0.0, others / ((time.monotonic() - self._began) * (os.cpu_count() or 1)))


def _busy_seconds() -> float:
    """Of all processors together, since the machine started: all but idle and waiting for disks."""
    user, nice, system, _idle, _waiting, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")

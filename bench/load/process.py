"""What a process holds, as the kernel counts it."""

import asyncio
import os
import time
from pathlib import Path

MEBIBYTE = 1 << 20
SETTLE_SECONDS = 0.1


def resident_bytes(pid: int) -> int:
    """Memory of the process that is in RAM; 0 when it has gone."""
    return _bytes_of(pid, "VmRSS")


def anonymous_bytes(pid: int) -> int:
    """The same without files that are mapped."""
    return _bytes_of(pid, "RssAnon")


def _bytes_of(pid: int, field: str) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    line = next((line for line in text.splitlines() if line.startswith(f"{field}:")), f"{field}: 0 kB")
    return int(line.split()[1]) * 1024


def open_files(pid: int) -> int:
    """File descriptors, sockets included; 0 when it has gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


async def settled_files(pid: int, most: int | None, seconds: float) -> int:
    """How many files are open once it is no more than `most` (None: once the number stays), or at the end."""
    deadline, before = time.monotonic() + seconds, -1
    while True:
        now = open_files(pid)
        settled = now == before if most is None else now <= most
        if settled or time.monotonic() >= deadline:
            return now
        before = now
        await asyncio.sleep(SETTLE_SECONDS)


def cpu_seconds(pid: int) -> float:
    """Processor time that it has taken; 0 when it has gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Sampler:
    """Notes the memory of a process now and then, while it is entered. Times are of time.monotonic()."""

    def __init__(self, pid: int, every: float = 0.25) -> None:
        self._pid, self._every = pid, every
        self.samples: list[tuple[float, int]] = []

    async def __aenter__(self) -> "Sampler":
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            self.samples.append((time.monotonic(), resident_bytes(self._pid)))
            await asyncio.sleep(self._every)

    def between(self, begins: float, ends: float) -> list[int]:
        """The samples of that time."""
        return [size for at, size in self.samples if begins <= at < ends]

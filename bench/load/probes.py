"""The prober's process from outside, and what it saw."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.load.traffic import percentile

EVERY_SECONDS = 0.05
END_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe; times are of time.monotonic(), `status` 0 where none came."""

    path: str
    due: float
    woken: float
    answered: float
    status: int

    @property
    def took_ms(self) -> float:
        """From when it asked, or would have asked had the answer before been there."""
        return 1000 * (self.answered - self.woken)

    @property
    def late_ms(self) -> float:
        """By how much the machine woke the prober too late."""
        return 1000 * (self.woken - self.due)


@dataclass(slots=True)
class Probes:
    """All probes; filled when the prober has ended."""

    all: list[Probe] = field(default_factory=list)

    def between(self, begins: float, ends: float) -> list[Probe]:
        """Those that were due in that time."""
        return [probe for probe in self.all if begins <= probe.due < ends]


@contextmanager
def probing(port: int, every: float = EVERY_SECONDS) -> Iterator[Probes]:
    """Probe /livez and /readyz in turns meanwhile."""
    command = [sys.executable, "-I", str(Path(__file__).with_name("prober.py")), str(port), str(every)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    probes = Probes()
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield probes
    finally:
        try:
            told, _ = process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            told, _ = process.communicate()
    probes.all += [_read(line) for line in told.splitlines()]


def _read(line: str) -> Probe:
    path, due, woken, answered, status = line.split()
    return Probe(path, float(due), float(woken), float(answered), int(status))


def told(probes: Sequence[Probe]) -> str:
    """p50, p99 and longest, for the report."""
    took, late = [one.took_ms for one in probes], [one.late_ms for one in probes]
    if not probes:
        return "no probes"
    return (
        f"{len(probes)} probes: p50 {percentile(took, 50):.1f}, p99 {percentile(took, 99):.1f}, "
        f"longest {max(took):.1f} ms; the prober was woken late by p99 {percentile(late, 99):.1f}, "
        f"at most {max(late):.1f} ms"
    )

"""Mutated bodies of every decoder against one real server, over HTTP: the full size of the test of the same promise.

Prints what was answered how often, the slowest, and the server's memory; ends with code 1 if anything was a fault of
the service, took over a second (three times, alone), or if memory grew. A line names the seed of what went wrong:
`python -m bench.fuzz --seed S --only N` sends that one again.
"""

import argparse
import http.client
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.server import Server, serving
from tests.service.mutations import Sample, mutated, samples
from tests.service.small_text_model import over_bytes, write_model

D = 6
SECONDS = 1.0  # that an answer may take
GROWN = 0.05  # of memory, from a tenth of the way to the end
CALLERS = 3
TRIES = 3  # of a slow one, alone, for the machine may have been busy


@dataclass
class Outcome:
    """What came of all bodies; a place in `slow` and `faults` is the number of a body."""

    statuses: Counter[int] = field(default_factory=Counter)
    slowest: tuple[float, int] = (0.0, -1)
    slow: list[int] = field(default_factory=list)
    faults: dict[int, str] = field(default_factory=dict)


class Fuzz:
    """The bodies of a seed: body i is made from i alone, so that each can be made again."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._valid = samples("small", D, over_bytes().get_vocab_size(), text=True)

    def body(self, i: int) -> Sample:
        """Body i."""
        return mutated(self._valid[i % len(self._valid)], random.Random(self._seed * 1_000_003 + i))


def send(port: int, connection: http.client.HTTPConnection, sample: Sample) -> tuple[int, bytes, float]:
    """Status, answer and seconds; a connection that the server closed between two requests is opened again."""
    for last in (False, True):
        began = time.perf_counter()
        try:
            connection.request("POST", sample.path, sample.content, sample.headers)
            response = connection.getresponse()
            return response.status, response.read(), time.perf_counter() - began
        except (ConnectionError, http.client.RemoteDisconnected):
            connection.close()
            if last:
                raise
    raise AssertionError


def send_all(fuzz: Fuzz, server: Server, numbers: Sequence[int]) -> Outcome:
    """Send these bodies from several callers at once."""
    outcome, lock, left = Outcome(), threading.Lock(), iter(numbers)

    def caller() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        while True:
            with lock:
                i = next(left, None)
            if i is None:
                break
            try:
                status, answer, seconds = send(server.port, connection, fuzz.body(i))
            except OSError as error:
                with lock:
                    outcome.faults[i] = repr(error)
                continue
            with lock:
                outcome.statuses[status] += 1
                outcome.slowest = max(outcome.slowest, (seconds, i))
                if status >= 500:
                    outcome.faults[i] = f"{status} {answer[:200]!r}"
                if seconds > SECONDS:
                    outcome.slow.append(i)
        connection.close()

    callers = [threading.Thread(target=caller) for _ in range(CALLERS)]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    return outcome


def always_slow(fuzz: Fuzz, server: Server, i: int) -> bool:
    """Whether a body takes too long each time, with nothing else to do."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    found = all(send(server.port, connection, fuzz.body(i))[2] > SECONDS for _ in range(TRIES))
    connection.close()
    return found


def memory(server: Server) -> int:
    """The resident bytes of the server's process."""
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * 4096


def main() -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, help="send this body alone")
    options = parser.parse_args()
    fuzz = Fuzz(options.seed)
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "small", over_bytes(), n_layers=3)
        limits = ("--max-body-bytes", str(1 << 20), "--log-level", "warning")
        with serving(model, "--threads", "1", *limits) as server:
            if options.only is not None:
                sample = fuzz.body(options.only)
                print(sample)
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
                print(send(server.port, connection, sample))
                return 0
            return report(fuzz, server, options.count)


def report(fuzz: Fuzz, server: Server, count: int) -> int:
    """Send `count` bodies and print what came of them; the exit code."""
    first = count // 10
    before = memory(server)
    warm_up = send_all(fuzz, server, range(first))
    settled, began = memory(server), time.perf_counter()
    rest = send_all(fuzz, server, range(first, count))
    after, seconds = memory(server), time.perf_counter() - began
    statuses, faults = warm_up.statuses + rest.statuses, warm_up.faults | rest.faults
    slow = [i for i in warm_up.slow + rest.slow if always_slow(fuzz, server, i)]
    took, which = max(warm_up.slowest, rest.slowest)
    print("| status | bodies |\n|---|---|")
    for status, bodies in sorted(statuses.items()):
        print(f"| {status} | {bodies} |")
    print(f"{sum(statuses.values())} answers, {(count - first) / seconds:.0f} a second")
    print(
        f"slowest: {1000 * took:.0f} ms, body {which} ({fuzz.body(which).name}); over {SECONDS:g} s each time: {slow}"
    )
    megabytes = " -> ".join(f"{size / 1e6:.1f}" for size in (before, settled, after))
    print(f"memory, MB at the start, after {first} and after {count} bodies: {megabytes}")
    for i, what in sorted(faults.items()):
        print(f"body {i} ({fuzz.body(i).name}): {what}")
    grew = after > (1 + GROWN) * settled
    if grew:
        print(f"memory grew by more than {GROWN:.0%}")
    return int(bool(faults or slow or grew or sum(statuses.values()) != count))


if __name__ == "__main__":
    sys.exit(main())

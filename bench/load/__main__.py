"""Run scenarios against servers of their own, print what they found: `python -m bench.load overload ... --seconds 60`.

Exit code 1 if a check failed.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace

from bench.load.disturbance import Disturbance, disturbance
from bench.load.fairness import KEYS_SETTING, Fairness, fairness, two_keys
from bench.load.mixed import STREAM_ABOVE_BYTES
from bench.load.overload import Overload, overload
from bench.load.report import Outcome
from bench.load.shutdown import Shutdown, shutdown
from bench.load.soak import Soak, soak
from tests.server import serving

MODEL = ("mgm", "--threads", "1", "--log-level", "warning")


def run_overload(seconds: float) -> Iterator[Outcome]:
    """Once with ids and once without, each time against a new server."""
    for own_ids in (True, False):
        with serving(*MODEL) as server:
            yield overload(server, replace(Overload(own_ids=own_ids), seconds=seconds))


def run_disturbance(seconds: float) -> Iterator[Outcome]:
    """With streamed answers among them."""
    with serving(*MODEL, "--stream-above-bytes", str(STREAM_ABOVE_BYTES)) as server:
        yield disturbance(server, Disturbance(seconds=seconds))


def run_shutdown(seconds: float) -> Iterator[Outcome]:
    """Half of the time before SIGTERM."""
    with serving(*MODEL) as server:
        yield shutdown(server, Shutdown(seconds=seconds / 2))


def run_fairness(seconds: float) -> Iterator[Outcome]:
    """Each part that long; once with a flood in an open loop, once in a closed one."""
    for factor in (3.0, None):
        with two_keys() as keys, serving(*MODEL, **{KEYS_SETTING: str(keys.path)}) as server:
            yield fairness(server, Fairness(seconds=seconds, factor=factor), keys)


def run_soak(seconds: float) -> Iterator[Outcome]:
    """With streamed answers among them."""
    with serving(*MODEL, "--stream-above-bytes", str(STREAM_ABOVE_BYTES)) as server:
        yield soak(server, Soak(seconds=seconds))


SCENARIOS: dict[str, Callable[[float], Iterator[Outcome]]] = {
    "overload": run_overload,
    "disturbance": run_disturbance,
    "shutdown": run_shutdown,
    "fairness": run_fairness,
    "soak": run_soak,
}


def main() -> int:
    """Print each outcome as it comes."""
    parser = argparse.ArgumentParser(prog="python -m bench.load", description=__doc__)
    parser.add_argument("scenarios", nargs="+", choices=sorted(SCENARIOS), metavar="SCENARIO")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each load lasts")
    options = parser.parse_args()
    failed = 0
    for name in options.scenarios:
        began = time.monotonic()
        try:
            for outcome in SCENARIOS[name](options.seconds):
                print(outcome.markdown(), flush=True)
                failed += len(outcome.failed)
        except Exception:
            traceback.print_exc()
            print(f"### {name}: ended by an error, which stands above\n", flush=True)
            failed += 1
        print(f"{name}: {time.monotonic() - began:.0f} s\n", flush=True)
    print(f"{failed} checks failed" if failed else "all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Our service, other servers and the limit, on the same requests: `python -m bench.peers [--quick]`.

Prints the tables of docs/performance.md; how far it is goes to stderr.
"""

import argparse
import multiprocessing
import os
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from bench.peers.contest import Contest
from bench.peers.environments import pinned
from bench.peers.figures import Finding, findings
from bench.peers.loads import C32, LIMIT, LOADS, P50, PACKED, REQUESTS, STACK, TRANSFORMERS
from bench.peers.models import GPT2, SMALL, SMOLLM2
from bench.peers.peers import PEERS, UNBATCHED
from bench.peers.report import figures_table, findings_table, memory_findings, memory_table
from bench.peers.targets import TARGETS
from bench.peers.turns import Outcome

START_SECONDS = 5.0  # that a second start may take


def contests(quick: bool, rounds: int, seconds: float) -> list[Contest]:
    """What is measured. A quick run has one model and one peer, and leaves its layers and maps out."""
    loads = tuple(LOADS)
    if quick:
        peers = (replace(UNBATCHED, wants=("final",)),)
        return [Contest(GPT2, loads, peers, rounds, seconds, (LIMIT, STACK, PACKED))]
    return [
        Contest(GPT2, loads, PEERS, rounds, seconds, (LIMIT, STACK, PACKED, TRANSFORMERS)),
        Contest(SMALL, (C32,), PEERS, rounds, seconds, ()),
        Contest(SMOLLM2, (C32,), (), rounds, seconds, (LIMIT, PACKED)),
    ]


def print_report(outcomes: dict[str, Outcome]) -> bool:
    """All tables; whether every target was reached."""
    found = findings(TARGETS, {model: outcome.figures for model, outcome in outcomes.items()})
    small = outcomes[SMALL].memory if SMALL in outcomes else None
    memory = outcomes[GPT2].memory
    assert memory is not None
    found += memory_findings(memory, small) if small is not None else []
    if SMOLLM2 in outcomes:
        seconds = outcomes[SMOLLM2].start_seconds
        bound = f"at most {START_SECONDS:g}"
        text = "SmolLM2-135M, seconds from a second start to ready"
        found.append(Finding(text, bound, f"{seconds:.1f}", seconds <= START_SECONDS))
    print(findings_table(found))
    for model, outcome in outcomes.items():
        print("\n" + figures_table(f"{model}, tokens/s", outcome.figures, (*LOADS, P50)))
        if model == SMALL:
            print("\n" + figures_table(model, outcome.figures, (REQUESTS,)))
    print("\n" + memory_table(memory, small))
    for model, outcome in outcomes.items():
        print("\n" + "\n".join(f"- {model}: {note}" for note in outcome.notes))
    return all(one.holds for one in found)


def main() -> int:
    """Measure, print. A target that is missed is no error."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="us, one peer and the limit, in less than four minutes")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured, of which medians are taken")
    parser.add_argument("--seconds", type=float, help="how long clients go on asking; what runs then is awaited")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end too
    seconds = options.seconds or (3.0 if options.quick else 5.0)
    began, load = time.monotonic(), os.getloadavg()[0]
    print(f"load average before: {load:.2f}", file=sys.stderr)
    context = multiprocessing.get_context("spawn")
    outcomes = {}
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as child:
        for contest in contests(options.quick, options.rounds, seconds):
            outcomes[contest.model] = contest.hold(child)
    print_report(outcomes)
    print(f"\n{os.cpu_count()} cores, {pinned('torch')}, {pinned('transformers')}; load average before: {load:.2f}; ")
    print(f"{options.rounds} rounds, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""One model, all servers, some rounds: in each round every load falls on one server after the other.

The servers stay up between their turns, and those that poll while they are idle are stopped meanwhile; what the idle
ones take of the processor is noted.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError
from typing import TypeVar

from bench.load.loop import run
from bench.peers import in_process
from bench.peers.check import TOLERANCE, ours, replies, worst_deviation
from bench.peers.limit import tokens_per_second
from bench.peers.loads import C1, C32, LIMIT, LOADS, OURS, PACKED, STACK, TRANSFORMERS
from bench.peers.memory import Memory, Peak, need_of_batch
from bench.peers.models import model_directory
from bench.peers.peers import Peer, running
from bench.peers.prompts import Array, Want, prompts, sequence, to_peers, to_us
from bench.peers.turns import Contestant, Outcome, Turns
from model.checkpoint.load import read_config
from model.config import StackConfig
from tests.server import Server, serving

T = TypeVar("T")

CHECKED = 6  # answers with all layers, or with maps, of each peer; of final states all


@dataclass(frozen=True)
class Contest:
    """Which loads fall on which servers how often. `beside`: of what is measured without a server."""

    model: str
    loads: Sequence[str]
    peers: Sequence[Peer]
    rounds: int
    seconds: float
    beside: Sequence[str] = (LIMIT,)

    def hold(self, child: Executor) -> Outcome:
        """Start all, check that the peers answer as we do, and measure. `child` runs what needs no server."""
        directory, outcome = model_directory(self.model), Outcome()
        _, config = read_config(directory)
        with ExitStack() as stack:
            began = time.monotonic()
            server = stack.enter_context(serving(directory, "--log-level", "warning"))
            outcome.start_seconds = time.monotonic() - began
            own_requests = {want: to_us(want, config) for want in self._wants()}
            contestants = [Contestant(OURS, server.port, server.process.pid, own_requests)]
            outcome.memory = _memory(server, directory, config)
            contestants += self._start_peers(stack, directory, config, outcome)
            self._check(contestants, config, outcome)
            turns = Turns(contestants, outcome, self.seconds)
            for number in range(self.rounds):
                print(f"{self.model}: round {number + 1} of {self.rounds}", file=sys.stderr, flush=True)
                for load in self.loads:
                    if load == C1:
                        turns.take_one_by_one(self._one_by_one(directory, child))
                    else:
                        self._measure_beside(load, directory, config, outcome, child)
                        turns.take(load)
            outcome.notes += turns.told()
        return outcome

    def _wants(self) -> list[Want]:
        return list(dict.fromkeys(["final", *(LOADS[load][0] for load in self.loads)]))

    def _start_peers(
        self, stack: ExitStack, directory: Path, config: StackConfig, outcome: Outcome
    ) -> Iterator[Contestant]:
        first = to_peers("final", config)[0]
        for peer in self.peers:
            try:
                port, pid = stack.enter_context(running(peer, directory, first))
            except (AssertionError, OSError, SubprocessError) as error:
                outcome.notes.append(f"{peer.name} is left out: {str(error).strip().splitlines()[-1]}")
                print(f"{peer.name}: {error}", file=sys.stderr, flush=True)
                continue
            requests = {want: to_peers(want, config) for want in self._wants() if want in peer.wants}
            yield Contestant(peer.name, port, pid, requests, peer.polls)

    def _check(self, contestants: list[Contestant], config: StackConfig, outcome: Outcome) -> None:
        """Every peer's answers against ours."""
        us, *peers = contestants
        for want, requests in us.requests.items():
            chosen = slice(None) if want == "final" else slice(CHECKED)
            expected: list[Array] = ours(run(replies(us.port, requests[chosen])), want, config)
            for peer in peers:
                if want in peer.requests:
                    theirs = peer.requests[want][chosen]
                    worst = worst_deviation(run(replies(peer.port, theirs)), expected, theirs, config.d_model)
                    assert worst <= TOLERANCE, f"{peer.name}, {want}: differs from ours by {worst:.1e} of a row"
                    outcome.notes.append(f"{peer.name}, {want}: differs from ours by {worst:.0e} of a row at most")

    def _one_by_one(self, directory: Path, child: Executor) -> dict[str, Callable[[slice], list[float]]]:
        """What is compared with a single client and needs no server."""
        work = {STACK: in_process.stack_one_by_one, TRANSFORMERS: in_process.transformers_one_by_one}
        return {
            row: lambda part, call=of_row: child.submit(call, directory, part).result()
            for row, of_row in work.items()
            if row in self.beside
        }

    def _measure_beside(
        self, load: str, directory: Path, config: StackConfig, outcome: Outcome, child: Executor
    ) -> None:
        """What is compared with this load and needs no server."""
        figures = outcome.figures

        def call(work: Callable[[Path], T]) -> T:
            return outcome.quiet.measured(lambda: child.submit(work, directory).result())

        if load == C32 and PACKED in self.beside:
            figures.add(PACKED, C32, call(in_process.stack_packed))
        if load == C32 and LIMIT in self.beside:
            rate = call(in_process.rate)
            sequences = [sequence(tokens, "final", config) for tokens in prompts()]
            figures.add(LIMIT, C32, tokens_per_second(rate, config, sequences))
            outcome.notes.append(f"best rate: {rate.told()}")


def _memory(server: Server, directory: Path, config: StackConfig) -> Memory:
    with server.client() as http:
        rows = int(http.get("/model").json()["limits"]["max_batch_tokens"])
    rows = min(rows, sum(map(len, prompts())))
    weights = sum(path.stat().st_size for path in directory.glob("*.safetensors"))
    loaded = Peak(server.process.pid).nbytes
    return Memory(loaded, loaded, weights, rows, need_of_batch(config, rows))

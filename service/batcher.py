"""Tickets to batches to results: a queue, a pure choice of what runs together, and one thread that owns the model.

There is no timer: while the model is busy tickets gather, and when it is free the next batch takes what there is.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from service.errors import DeadlinePassed, Draining, ModelFailed
from service.ticket import Began, Ran, Ticket

log = logging.getLogger("headwater.batcher")

RunBatch = Callable[[Sequence[Ticket]], None]
"""Run the tickets' sequences together and put each one's results on its ticket; may raise."""


@dataclass(frozen=True)
class Budget:
    """What one model call may hold: `tokens` are rows of the packed matrix."""

    tokens: int


def take_batch(waiting: deque[Ticket], budget: Budget, now: float) -> tuple[list[Ticket], list[Ticket]]:
    """The oldest tickets that fit one model call, and those that were set aside because nobody waits for them.

    Both are taken out of `waiting`. The first that is wanted is always taken, so that one over the budget runs by
    itself; the order of arrival is kept.
    """
    batch: list[Ticket] = []
    aside: list[Ticket] = []
    tokens = 0
    while waiting:
        ticket = waiting[0]
        if ticket.is_wanted(now):
            tokens += ticket.sequence.length
            if batch and tokens > budget.tokens:
                break
            batch.append(waiting.popleft())
        else:
            aside.append(waiting.popleft())
    return batch, aside


class Batcher:
    """The queue and the model thread. `submit` is for the event loop, everything else happens in the thread."""

    def __init__(
        self,
        run_batch: RunBatch,
        budget: Budget,
        *,
        first: Callable[[], None] | None = None,
        on_death: Callable[[], None] | None = None,
    ) -> None:
        """`first` is called in the model thread before any batch; `on_death` where it ends without `close`."""
        self._run_batch, self.budget = run_batch, budget
        self._first, self._on_death = first, on_death
        self._waiting: deque[Ticket] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="headwater-model", daemon=True)

    def start(self) -> None:
        """Start the model thread."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether the model thread runs."""
        return self._thread.is_alive()

    def beat_age(self) -> float:
        """Seconds since the model thread last showed a sign of life."""
        return 0.0

    def is_open(self) -> bool:
        """Whether tickets are taken."""
        return self._thread.is_alive() and not self._closed

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Let tickets wait for their runs, in this order. Raises Draining once the batcher is closed."""
        with self._changed:
            if self._closed:
                raise Draining("the service is shutting down", retry_after=5)
            self._waiting.extend(tickets)
            self._changed.notify()

    def close(self) -> None:
        """Take no more; what waits is refused, what runs comes to its end."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def join(self, seconds: float) -> None:
        """Wait for the model thread to end after `close`."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _work(self) -> None:
        batch: list[Ticket] = []
        try:
            if self._first is not None:
                self._first()
            while (batch := self._take()) or not self._closed:
                self._run(batch, time.monotonic())
        finally:
            with self._changed:
                died, self._closed = not self._closed, True
                left = [*batch, *self._waiting]
                self._waiting.clear()
            for ticket in left:
                ticket.refuse(Draining("the service is shutting down", retry_after=5))
            if died and self._on_death is not None:
                self._on_death()

    def _take(self) -> list[Ticket]:
        """The next batch, as soon as there is one; empty when there was nobody left to run for, or at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return []
            batch, aside = take_batch(self._waiting, self.budget, time.monotonic())
        for ticket in aside:
            ticket.refuse(DeadlinePassed("the deadline passed while the request was waiting"))
        return batch

    def _run(self, batch: list[Ticket], started: float) -> None:
        """Run a batch and settle its tickets; a batch that fails is run again in halves, down to the culprit."""
        if not batch:
            return
        tokens = sum(ticket.sequence.length for ticket in batch)
        for ticket in batch:
            ticket.begin(Began(ticket.arrived, started, len(batch), tokens))
        try:
            self._run_batch(batch)
        except Exception as error:
            if len(batch) > 1:
                log.warning("a batch of %d failed and is run again in halves", len(batch), exc_info=error)
                middle = len(batch) // 2
                self._run(batch[:middle], started)
                self._run(batch[middle:], started)
                return
            log.error("a sequence failed in the model", exc_info=error)
            batch[0].refuse(ModelFailed("the model failed on this request"))
            return
        ended = time.monotonic()
        for ticket in batch:
            ticket.settle(Ran(Began(ticket.arrived, started, len(batch), tokens), ended))
